"""The module that takes the place of exllamav3's compiled extension, and what becomes of operations it lacks."""

import importlib.abc
import importlib.machinery
from collections.abc import Mapping
from types import ModuleType

from daemon.core.errors import ConfigError
from daemon.engine.cpu import (
    activations,
    delta_net,
    exl3,
    kv_cache,
    linear,
    loader,
    moe,
    norms,
    penalties,
    places,
    quant_cache,
    rewind,
    rope,
    sampling,
    staging,
    suffixes,
)

NAME = "exllamav3_ext"


class OperationMissing(ConfigError):
    """A model needs an operation that has no CPU version."""


def _no_graph(*_args: object, **_settings: object) -> None:
    """In place of a graph-captured GPU layer: None, at which exllamav3 takes its ordinary path."""


OPERATIONS: Mapping[str, object] = {
    # reading weights
    "stloader_open_file": loader.stloader_open_file,
    "stloader_close_file": loader.stloader_close_file,
    "stloader_read": loader.stloader_read,
    "stloader_deferred_batch": loader.stloader_deferred_batch,
    # norms and position
    "rms_norm": norms.rms_norm,
    "rms_norm_res_in": norms.rms_norm_res_in,
    "gated_rms_norm": norms.gated_rms_norm,
    "BC_GatedRMSNorm": norms.BC_GatedRMSNorm,
    "rope": rope.Rope.rope,
    "gen_mrope_pos_ids": places.gen_mrope_pos_ids,
    # activations and gates
    "silu_mul": activations.silu_mul,
    "gelu_mul": activations.gelu_mul,
    "relu_mul": activations.relu_mul,
    "relu2_mul": activations.relu2_mul,
    "silu_oai_mul": activations.silu_oai_mul,
    "xielu": activations.xielu,
    "softcap": activations.softcap,
    "mul_sigmoid_": activations.mul_sigmoid_,
    "mul_sigmoid_broadcast_": activations.mul_sigmoid_broadcast_,
    "mul_softplus_broadcast_": activations.mul_softplus_broadcast_,
    "add_sigmoid_gate": activations.add_sigmoid_gate,
    "add_sigmoid_gate_proj": activations.add_sigmoid_gate_proj,
    "add": activations.add,
    "deinterleave_qg": activations.deinterleave_qg,
    # linear layers
    "hgemm": linear.hgemm,
    "hgemm_recon": linear.hgemm_recon,
    "BC_LinearFP16": linear.BC_LinearFP16,
    "BC_LinearEXL3": exl3.BC_LinearEXL3,
    "reconstruct": exl3.reconstruct,
    "reconstruct_slice": exl3.reconstruct_slice,
    "reconstruct_had_slice": exl3.reconstruct_had_slice,
    "had_r_128": exl3.had_r_128,
    "exl3_gemv_int8_max_k": exl3.exl3_gemv_int8_max_k,
    "routing_std": moe.routing_std,
    # graph-captured layers
    "BC_MLP": _no_graph,
    "BC_GatedMLP": _no_graph,
    # caches
    "paged_kv_cache_update": kv_cache.paged_kv_cache_update,
    "cache_rotate": kv_cache.cache_rotate,
    "quant_cache_cont": quant_cache.quant_cache_cont,
    "dequant_cache_cont": quant_cache.dequant_cache_cont,
    "quant_cache_paged": quant_cache.quant_cache_paged,
    "dequant_cache_paged": quant_cache.dequant_cache_paged,
    # recurrent layers
    "gated_delta_net_fused_op_2": delta_net.gated_delta_net_fused_op_2,
    "cuda_recurrent_gated_delta_rule": delta_net.cuda_recurrent_gated_delta_rule,
    "ConvRewindJob": rewind.ConvRewindJob,
    "ScanReplayJob": rewind.ScanReplayJob,
    "batched_conv_rewind": rewind.batched_conv_rewind,
    "batched_scan_replay": rewind.batched_scan_replay,
    # drafts
    "BC_SAM": suffixes.SuffixAutomaton,
    # sampling
    "gumbel_noise_f16": sampling.gumbel_noise_f16,
    "gumbel_noise_f32": sampling.gumbel_noise_f32,
    "gumbel_noise_log": sampling.gumbel_noise_log,
    "adaptivep_gumbel_noise_f32": sampling.adaptivep_gumbel_noise_f32,
    "apply_logit_bitmask": sampling.apply_logit_bitmask,
    "fused_sampler": sampling.fused_sampler,
    "FUSED_SAMPLER_MAX_BLOCKS": sampling.FUSED_SAMPLER_MAX_BLOCKS,
    "FUSED_SAMPLER_HIST_STRIDE": sampling.FUSED_SAMPLER_HIST_STRIDE,
    "count_inf_nan": sampling.count_inf_nan,
    "apply_rep_pens": penalties.apply_rep_pens,
    "apply_pres_freq_pens": penalties.apply_pres_freq_pens,
    "dry_penalty": penalties.dry_penalty,
    # the generator's host side
    "generator_stage_decode": staging.generator_stage_decode,
    "count_match_tensor": staging.count_match_tensor,
    "partial_strings_match": staging.partial_strings_match,
    # optional kernel families, which exllamav3 asks for before it uses them
    "HAS_GR_MIX_TILED": False,
    "HAS_DET_GEMM": moe.HAS_DET_GEMM,
    "HAS_HGEMM_F16ACC": False,
    "HAS_DFLASH2": False,
}
"""Everything the CPU has, under exllamav3's names."""


class _Loader(importlib.abc.Loader):
    """A spec needs a loader to count as one; nothing is ever loaded through it."""


class CpuExtension(ModuleType):
    """The extension module. A name it lacks can be looked up, since exllamav3 does so in tables, but not called."""

    def __init__(self) -> None:
        super().__init__(NAME, __doc__)
        vars(self).update(OPERATIONS)
        vars(self)["rope"] = rope.Rope().rope
        # exllamav3 uses what it finds where the origin looks like a compiled module, and else starts a compiler
        origin = NAME + importlib.machinery.EXTENSION_SUFFIXES[0]
        self.__spec__ = importlib.machinery.ModuleSpec(NAME, _Loader(), origin=origin)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_args: object, **_options: object) -> object:
            raise OperationMissing(f"{NAME}.{name} has no CPU version", "daemon.engine.cpu")

        return missing
