"""Scripts that the Makefile runs. Those for set-up need nothing but the standard library."""
