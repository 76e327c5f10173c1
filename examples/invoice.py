"""An invoice is charged once, however often the message that asks for it is delivered: invoice.py SHOP.db NUMBER

The charge and the record of it are one transaction of the shop's own database, so no crash can come between them. Who
asks again gets the receipt of the first time.
"""

import sqlite3
import sys

import dibs


def charge(shop: sqlite3.Connection, client: dibs.Client, invoice: int, amount: int) -> str:
    """Charge it, unless that has been done; return the receipt."""
    with client.idempotent(f"charge:{invoice}", fingerprint={"amount": amount}, timeout=30) as call:
        if not call.replayed:
            with shop:
                row = shop.execute("INSERT INTO charge VALUES (?, ?)", (invoice, amount)).lastrowid
                call.commit(shop, f"receipt {row}")
    return str(call.result)


if __name__ == "__main__":
    path, number = sys.argv[1], int(sys.argv[2])
    with dibs.connect(f"sqlite:{path}") as client:
        client.record(f"charge:{number}")  # whoever asks first makes the store's tables in the shop's database
        shop = sqlite3.connect(path, timeout=30)
        shop.execute("CREATE TABLE IF NOT EXISTS charge (invoice INTEGER, amount INTEGER)")
        print(charge(shop, client, number, 100))
