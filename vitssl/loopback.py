"""torchrun for a job on one node: ``python -m vitssl.loopback --nproc-per-node 2 -m vitssl.train FOLDER``.

Its processes find each other and exchange gradients over the loopback interface alone. torchrun by itself listens on every address and
does not check who connects.
"""

from __future__ import annotations

import os
import socket
import sys

from torch.distributed import TCPStore, run
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

ADDRESS = "127.0.0.1"
TIMEOUT_S = 600  # as torchrun's


class Loopback(StaticTCPRendezvous):
    """torchrun's static rendezvous with a store on the loopback interface.

    The store gets a socket that is already bound, so that nobody can take its port in between. The rendezvous is static because torchrun's
    elastic ones unpickle what they find in their store.
    """

    def __init__(self, parameters: RendezvousParameters):
        listening = socket.create_server((ADDRESS, 0))
        port = listening.getsockname()[1]
        super().__init__(ADDRESS, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=TIMEOUT_S)
        # the store closes the socket
        self._store = TCPStore(ADDRESS, port, 1, is_master=True, timeout=self.timeout, master_listen_fd=listening.detach())

    def get_backend(self) -> str:
        return "loopback"


def main(words: list[str]) -> None:
    """Run torchrun on one node with the arguments ``words``."""
    rendezvous_handler_registry.register("loopback", Loopback)
    # for the ranks; a site may have set another interface for jobs on several nodes
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    run.main(["--rdzv-backend", "loopback", "--rdzv-endpoint", f"{ADDRESS}:0", "--max-restarts", "0", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
