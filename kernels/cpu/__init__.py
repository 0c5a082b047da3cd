"""Native CPU ops: C++17 sources, the one build script, the loader and the typed launchers.

`build.py` compiles every source once per instruction set into one shared library, `library.py` loads it and refuses a
stale one, `ops.py` validates tensors and calls it.
"""
