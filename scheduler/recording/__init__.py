"""Recordings of the scheduler core: every input with its time, every plan, in files that replay on any machine.

    packing     integers, text and columns of integers as bytes
    values      sequences, results and limits as bytes
    plans       what `schedule` answered, packed against the plan before, and in readable lines
    verbs       the one table of the core's verbs and their arguments
    segments    the file format: headers, checksummed frames, rotation
    recorded_scheduler   a core that writes down what it is told
    replay      the same calls on a fresh core, compared plan by plan
    workload, step_model, simulation, measures, report, plot   what would have happened with other limits

Only the standard library is imported, and matplotlib for a plot. A recording is data alone: reading it runs nothing.
"""
