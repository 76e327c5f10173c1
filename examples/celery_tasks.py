"""A Celery task that runs once at a time for each account, in whatever worker: celery -A celery_tasks worker

celery-once refuses the second call where it is sent, and its lock runs out under a task that takes long. Here every
call is accepted, and looks when it begins: if another runs for the account, it goes back into the queue for a while.
So a change that comes while the task runs is still seen. The lock is renewed for as long as the task runs, and free at
the latest a ttl after its worker has died.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import dibs

app = Celery("tasks", broker=os.environ["BROKER_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,  # a task whose worker dies is given to another, which waits until the lock is free
    task_reject_on_worker_lost=True,
)
client = dibs.connect()  # of DIBS_URL; the workers that Celery forks may use it, each has its own connections


@app.task(bind=True, max_retries=None)
def sync(self: Any, account: str) -> None:
    """Synchronise one *account*."""
    try:
        lease = client.lock(f"sync:{account}", ttl=30, timeout=0, note="celery").acquire()
    except dibs.NotAcquired:
        raise self.retry(countdown=1) from None
    with lease:
        work(account, lease.fence)


def work(account: str, fence: int) -> None:
    """What must not happen twice at once: it says when it begins and ends."""
    with Path(os.environ["JOURNAL"]).open("a", encoding="utf-8", buffering=1) as journal:
        print(f"begin {account} {fence}", file=journal)
        time.sleep(0.2)
        print(f"end {account} {fence}", file=journal)
