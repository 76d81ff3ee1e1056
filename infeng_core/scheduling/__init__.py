"""Which rows run next: the scheduler's interface, the queue, the blocks of the cache, drafts."""
