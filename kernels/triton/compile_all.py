"""python -m kernels.triton.compile_all: compiles every kernel for sm_80 and sm_90 and reports what each one uses.

No GPU is needed. The report goes to build/triton-kernels.txt and to standard output. Status 1 if a kernel does not
compile, does not fit the shared memory of its GPU, or is hot and has the products of a warpgroup wait for one another
or spills registers in a loop: a few that wait on the stack from the start of a program to its end cost nothing. What
was compiled before comes from Triton's cache.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kernels.triton.compiled_cases import cases
from kernels.triton.cubins import Resources, Variant, compile_variant, recorded
from kernels.triton.device import A100, H100, Gpu, assume

REPORT = Path("build/triton-kernels.txt")
_REGISTERS_PER_SM = 65536
_WARPS_PER_SM = 64


@dataclass(frozen=True, slots=True)
class Job:
    """A variant, the first case that launches it, whether any that does is hot, and the GPU to compile it for."""

    variant: Variant
    case: str
    hot: bool
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the compiler made of a job."""

    job: Job
    resources: Resources | None
    error: str

    @property
    def problem(self) -> str:
        """Why the check fails, empty if it does not."""
        if self.resources is None:
            return self.error
        if self.resources.shared > self.job.gpu.shared_bytes:
            return f"needs more shared memory than {self.job.gpu.shared_bytes} bytes"
        if self.job.hot and self.resources.spills_in_loops:
            return "spills in a loop"
        return "has its products wait for one another" if self.job.hot and self.resources.serialized else ""


def jobs() -> list[Job]:
    """Every variant once for each GPU, those that take long to compile first."""
    found: dict[tuple[int, Variant], Job] = {}
    for gpu in (H100, A100):
        for case in cases():
            with assume(gpu), recorded() as variants:
                case.call()
            for variant in variants:
                key = (gpu.capability, variant)
                before = found.get(key)
                found[key] = Job(
                    variant, before.case if before else case.name, case.hot or bool(before and before.hot), gpu
                )
    slow = ("merge_kernel", "decode_kernel", "prefill_kernel")
    return sorted(found.values(), key=lambda job: slow.index(job.variant.kernel) if job.variant.kernel in slow else -1)[
        ::-1
    ]


def compile_job(job: Job) -> Outcome:
    """Run in a process of its own."""
    try:
        return Outcome(job, compile_variant(job.variant, job.gpu.capability), "")
    except Exception as error:  # whatever Triton raises is the kernel's line of the report
        return Outcome(job, None, f"does not compile: {type(error).__name__}: {error}".splitlines()[0][:200])


def programs_per_sm(resources: Resources, gpu: Gpu) -> int:
    """How many programs of a kernel an SM holds at once."""
    per_warp = -(-resources.registers // 8) * 8 * 32
    by_registers = _REGISTERS_PER_SM // (per_warp * resources.warps)
    by_shared = (gpu.shared_bytes + 1024) // (resources.shared + 1024)  # 1 kB of each program's is the system's
    return min(by_registers, by_shared, _WARPS_PER_SM // resources.warps, 32)


def report(outcomes: list[Outcome]) -> str:
    """The table."""
    heads = ("kernel", "sm", "registers", "stack", "in loops", "shared", "warps", "per SM", "first launched by")
    rows: list[tuple[str, ...]] = [heads]
    for outcome in sorted(outcomes, key=lambda o: (o.job.variant.kernel, o.job.gpu.capability, o.job.case)):
        job, used = outcome.job, outcome.resources
        figures: tuple[int | str, ...] = ("",) * 6
        if used is not None:
            figures = (used.registers, used.stack, used.spills_in_loops, used.shared, used.warps)
            figures += (programs_per_sm(used, job.gpu),)
        note = job.case + (f"  <- {outcome.problem}" if outcome.problem else "")
        rows.append((job.variant.kernel, str(job.gpu.capability), *map(str, figures), note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads) - 1)]
    lines = []
    for row in rows:
        name, numbers, note = row[0], row[1:-1], row[-1]
        aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *aligned, note]))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compile, report, judge."""
    started = time.monotonic()
    todo = jobs()
    with multiprocessing.get_context("fork").Pool(min(len(todo), os.cpu_count() or 1)) as pool:
        outcomes = list(pool.imap_unordered(compile_job, todo))
    text = report(outcomes)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text)
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    print(text + f"{len(outcomes)} kernels in {time.monotonic() - started:.0f} s, {failed} failed; table in {REPORT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
