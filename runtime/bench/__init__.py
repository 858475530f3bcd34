"""``planonce bench``: a plan against other engines, each in a process of its own, in interleaved rounds."""
