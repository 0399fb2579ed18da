"""The usage history: samples of the space of all bookies, in the stream system/usage."""
