"""Environment in, environment out: what stands between a user's environment and its adapter.

Imported as `menv.wrappers` only. Nothing here knows adapters, policies or the loop.
"""

from menv._root_link_guard import refuse_root_import

refuse_root_import(__name__)
