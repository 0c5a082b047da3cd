"""`python -m tests.scheduler.core.rewrite_traces`: writes the output of every trace as the core answers now."""

from __future__ import annotations

from tests.scheduler.core.trace import rewrite, traces


def main() -> None:
    for path in traces():
        before = path.read_text()
        after = rewrite(before)
        path.write_text(after)
        print(f"{'unchanged' if after == before else 'rewritten'} {path.name}")


if __name__ == "__main__":
    main()
