"""Options, values, output, exit codes, signals, contexts and logs that several commands use; it imports no noun, and
no command of the client's is here.
"""
