"""All kinds of tests in one class: a store's own test file subclasses it and says where the store is.

A store that has its entry point (group ``dibs.stores``) passes the contract when this file passes:

.. code-block:: python

    import pytest
    from dibs.testing.contract import StoreContract


    class TestMyStore(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore:{tmp_path}/locks"

One that has none yet says how it is made, and may say in which runtimes it works:

.. code-block:: python

    class TestMyStore(StoreContract):
        runtimes = ("threads",)

        @pytest.fixture
        def url(self, tmp_path):
            return str(tmp_path / "locks")

        def open_store(self, url, namespace, runtime):
            return MyStore(url, namespace, runtime)

What a store cannot do it declares in `Guarantees.cannot`: the tests that need it are skipped with its own words, and
`declared` tests that a client refuses it.
"""

import pytest

KINDS = (
    *("ownership", "expiry", "waiting", "blocks", "fences", "looking", "names", "handover", "keeping", "cancelling"),
    *("records", "electing", "sharing", "semaphores", "together", "slotted", "declared", "scarce", "parting"),
)
pytest.register_assert_rewrite(*(f"dibs.testing.contract.{kind}" for kind in KINDS))  # before they are imported

from dibs.testing.contract.blocks import Blocks  # noqa: E402
from dibs.testing.contract.cancelling import Cancelling  # noqa: E402
from dibs.testing.contract.declared import Declared  # noqa: E402
from dibs.testing.contract.electing import Electing  # noqa: E402
from dibs.testing.contract.expiry import Expiry  # noqa: E402
from dibs.testing.contract.fences import Fences  # noqa: E402
from dibs.testing.contract.handover import HandOver  # noqa: E402
from dibs.testing.contract.keeping import Keeping  # noqa: E402
from dibs.testing.contract.looking import Looking  # noqa: E402
from dibs.testing.contract.names import Names  # noqa: E402
from dibs.testing.contract.ownership import Ownership  # noqa: E402
from dibs.testing.contract.parting import Parting  # noqa: E402
from dibs.testing.contract.records import Records  # noqa: E402
from dibs.testing.contract.scarce import Scarce  # noqa: E402
from dibs.testing.contract.semaphores import Semaphores  # noqa: E402
from dibs.testing.contract.sharing import Sharing  # noqa: E402
from dibs.testing.contract.slotted import Slotted  # noqa: E402
from dibs.testing.contract.suite import Fixtures  # noqa: E402
from dibs.testing.contract.together import Together  # noqa: E402
from dibs.testing.contract.waiting import Waiting  # noqa: E402


class StoreContract(
    Ownership,
    Expiry,
    Waiting,
    Blocks,
    Fences,
    Looking,
    Names,
    HandOver,
    Keeping,
    Cancelling,
    Records,
    Electing,
    Sharing,
    Semaphores,
    Together,
    Slotted,
    Declared,
    Scarce,
    Parting,
    Fixtures,
):
    """What every store does."""
