"""Crash tests: a real database on a mounted layout, its power cut at random moments, each acknowledged commit
looked for.
"""
