"""ModernBERT (Warner et al. 2024): pre-norm, GeGLU, local and global attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.attention import SelfAttention
from cdejax.models.encoder import Encoder
from cdejax.models.kernels.elementwise import geglu
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import (
    LayerNorm,
    Linear,
    Rotary,
    normal,
    rotary_table,
)
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class ModernBertConfig:
    """Sizes of a ModernBERT, under transformers' names; defaults: ModernBERT-base."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    initializer_range: float = 0.02
    pad_token_id: int = 50283
    global_attn_every_n_layers: int = 3
    """Layers 0, n, 2n, … attend to the whole text, the others to a window."""
    local_attention: int = 128
    """Width of the window: half of it on either side of the token."""
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False


class Shared(NamedTuple):
    """Inputs of all layers that are derived from the positions."""

    everywhere: Rotary
    """Rotary tables of global layers."""
    nearby: Rotary
    """Rotary tables of local layers."""
    window: Bool[Array, "*batch length length"] | None
    """Which tokens each token of a local layer may attend to; None for all."""


class ModernBertLayer(nnx.Module):
    """Attention and GeGLU, each preceded by a layer norm and with a residual.

    The first layer has no norm before its attention, since it follows the embedding
    norm.
    """

    def __init__(self, config: ModernBertConfig, index: int, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        init, eps = normal(config.initializer_range), config.norm_eps
        self.local = index % config.global_attn_every_n_layers != 0
        self.attention_norm = (
            LayerNorm(hidden, eps, bias=config.norm_bias) if index else None
        )
        self.attention = SelfAttention(
            hidden,
            config.num_attention_heads,
            rngs,
            bias=config.attention_bias,
            init=init,
        )
        self.mlp_norm = LayerNorm(hidden, eps, bias=config.norm_bias)
        bias = config.mlp_bias
        self.up = Linear(hidden, 2 * inner, rngs, bias=bias, kernel_init=init)
        self.down = Linear(inner, hidden, rngs, bias=bias, kernel_init=init)

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        shared: Shared,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the layer."""
        norm = self.attention_norm
        read = self.attention(
            x if norm is None else jax.tree.map(norm, x),
            padding,
            rotary=shared.nearby if self.local else shared.everywhere,
            visible=shared.window if self.local else None,
            outputs=outputs,
        )
        x = join_front(x)[:, outputs] + read
        inner, gate = jnp.split(self.up(self.mlp_norm(x)), 2, axis=-1)
        return x + self.down(geglu(inner, gate))


class ModernBert(Encoder):
    """ModernBERT without its masked-language-model head.

    Padding is never attended to, as in the unpadded implementation. The windows of
    local layers are determined by the given positions, and several tokens may share
    one. With a context at position 0 and a text from position C on, the text therefore
    attends to the context in global layers only, unless the window reaches that far.
    """

    config: ModernBertConfig
    rotary = True

    def __init__(
        self,
        config: ModernBertConfig,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        hidden, eps, bias = config.hidden_size, config.norm_eps, config.norm_bias
        self.norm = LayerNorm(hidden, eps, bias=bias)
        self.layers = nnx.List(
            [ModernBertLayer(config, i, rngs) for i in range(config.num_hidden_layers)]
        )
        self.final_norm = LayerNorm(hidden, eps, bias=bias)

    def before_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The embedding norm."""
        return self.norm(x)

    def after_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The final norm."""
        return self.final_norm(x)

    def layer_inputs(self, positions: Int[AnyArray, "*batch length"]) -> Shared:
        """Rotary tables of global and local layers, and the window."""
        return Shared(
            rotary_table(positions, self.head_dim, self.config.global_rope_theta),
            rotary_table(positions, self.head_dim, self.config.local_rope_theta),
            window(positions, self.config.local_attention // 2),
        )


def window(
    positions: Int[AnyArray, "*batch length"], reach: int
) -> Bool[Array, "*batch length length"] | None:
    """Which pairs of tokens are at most `reach` positions apart.

    Returns None, so that fused kernels apply, for NumPy positions of which all pairs
    are; this cannot be known for traced positions.
    """
    if isinstance(positions, np.ndarray) and np.ptp(positions) <= reach:
        return None
    where = jnp.asarray(positions)
    return jnp.abs(where[..., :, None] - where[..., None, :]) <= reach
