"""Scheduling: the interface of a policy, the scheduler, its queue, cache blocks, drafts."""
