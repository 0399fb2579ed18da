"""The parts that several nouns share: options, values, output, exit codes, signals, contexts and logs.

It imports no noun and has no command of its own.
"""
