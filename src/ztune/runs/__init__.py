"""Trials on real ZFS: a run's plan, its trials one after another, and when it may stop.

``plan`` says what is asked, ``prepared`` loads the database once, ``trial`` runs one trial over a channel,
``runner`` goes through the blocks, ``stopping`` judges after each of them.
"""
