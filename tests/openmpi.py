# SPDX-License-Identifier: Apache-2.0
"""What Open MPI must be told to run in a test."""


def variables(folder):
    """It refuses to start more ranks than processors, or as root, and looks at all interfaces, unless it is told.
    folder: for its files."""
    return {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_rmaps_base_oversubscribe": 1,
            "OMPI_MCA_mpi_yield_when_idle": 1, "OMPI_MCA_oob_tcp_if_include": "lo", "TMPDIR": folder,
            # Those of Open MPI 5.
            "PRTE_ALLOW_RUN_AS_ROOT": 1, "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
