"""Bugs planted in the stream layer, to show that the rules find them. `base` says what one is, `hunt` plays them;
`writing`, `reading`, `keeping`, `compacting` hold them by what they break. Production files know nothing of them.
"""
