"""What others have claimed of databases on ZFS, as data: the sentence, its figures, and what came of it here.

``publication`` reads who published what figures (``studies/published``), ``claim`` the sentences
(``studies/claims``); ``support`` says whether a sentence follows from its own figures, ``conclusion`` what
our trials say of it. Nothing here runs anything. docs/claims-format.md describes the files.
"""
