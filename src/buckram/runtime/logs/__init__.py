"""Logs of processes that run for long: lines of text or JSON on standard error, bounded, with levels that change.

Programs that use Buckram as a library have their own handlers for Python's `logging`; nothing here touches them.
"""
