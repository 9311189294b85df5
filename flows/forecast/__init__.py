"""``hallmark run --dry-run``: what a run would do, come to and fail of, before it is run.

``forecast`` puts together what the others find: ``planning`` what is in the store, ``sampling`` the
first records of the sources, ``figures`` what becomes of them, ``costs`` what training takes,
``concerns`` what is too little. Nothing here writes to a store or starts a server.
"""
