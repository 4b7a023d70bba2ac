class InferParams:
    moe_cpu_offload: int
    moe_cpu_offload_assigned: dict[str, int]
