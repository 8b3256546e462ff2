"""All trainable weights in two flat buffers: one gradient norm, one optimiser step, one cast, instead of hundreds."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Lays parameters out in flat float32 buffers, `matrices` (two or more axes) and `vectors` (norms, biases).

    Every parameter becomes a view into its buffer and its gradient a view into the buffer's gradient, so the
    module, its `state_dict` and autograd see nothing of it. Neighbours in the given order can be used as one
    matrix (`weight`, `grad`). `shadow` holds the matrices in the compute dtype: the buffer itself for float32.
    """

    def __init__(self, parameters: list[tuple[str, nn.Parameter]], compute: torch.dtype) -> None:
        if not parameters:
            raise ValueError("no trainable parameters to lay out")
        self._places: dict[str, tuple[bool, int, torch.Size]] = {}
        self.matrices = self._lay_out([(name, p) for name, p in parameters if p.ndim >= 2], matrix=True)
        self.vectors = self._lay_out([(name, p) for name, p in parameters if p.ndim < 2], matrix=False)
        self.shadow = self.matrices.data.view(-1)
        if compute != torch.float32:
            self.shadow = torch.empty_like(self.shadow, dtype=compute)
        self.refresh()

    def _lay_out(self, parameters: list[tuple[str, nn.Parameter]], matrix: bool) -> nn.Parameter:
        total = sum(parameter.numel() for _, parameter in parameters)
        device = parameters[0][1].device if parameters else None
        data = torch.empty(total, dtype=torch.float32, device=device)
        grad = torch.zeros_like(data)
        offset = 0
        for name, parameter in parameters:
            shape, end = parameter.shape, offset + parameter.numel()
            self._places[name] = (matrix, offset, shape)
            data[offset:end] = parameter.data.reshape(-1)
            parameter.data = data[offset:end].view(shape)
            parameter.grad = grad[offset:end].view(shape)
            offset = end
        # Matrices keep two axes, as weight decay (which spares vectors) tells them apart by.
        flat = nn.Parameter(data.view(1, -1) if matrix else data)
        flat.grad = grad.view_as(flat)
        return flat

    def __contains__(self, name: str) -> bool:
        """Whether a parameter of that name is laid out here."""
        return name in self._places

    def refresh(self) -> None:
        """Bring the shadow up to date after the weights changed."""
        if self.shadow.dtype != torch.float32:
            self.shadow.copy_(self.matrices.data.view(-1))

    def weight(self, *names: str) -> Tensor:
        """Adjacent parameters stacked along their first axis: matrices in the compute dtype, vectors in float32."""
        return self._span(self.shadow, self.vectors.data, names)

    def grad(self, *names: str) -> Tensor:
        """The float32 gradient of adjacent parameters as one view."""
        if self.matrices.grad is None or self.vectors.grad is None:
            raise RuntimeError("the gradient buffers are gone: zero them with zero_grad(set_to_none=False)")
        return self._span(self.matrices.grad.view(-1), self.vectors.grad, names)

    def _span(self, matrices: Tensor, vectors: Tensor, names: tuple[str, ...]) -> Tensor:
        matrix, start, shape = self._places[names[0]]
        end, rows = start, 0
        for name in names:
            kind, offset, each = self._places[name]
            if kind != matrix or offset != end or each[1:] != shape[1:]:
                raise ValueError(f"{names[0]} and {name} are not adjacent, or their shapes do not stack")
            end, rows = end + each.numel(), rows + each[0]
        return (matrices if matrix else vectors)[start:end].view(rows, *shape[1:])

    def in_float32(self) -> FlatParameters:
        """The same weights used in float32: a view, for comparisons."""
        view = object.__new__(FlatParameters)
        view.__dict__.update(self.__dict__, shadow=self.matrices.data.view(-1))
        return view

    def frozen(self) -> FlatParameters:
        """A copy for evaluation alone: the weights in the compute dtype, no float32 matrices, no gradients."""
        copy = object.__new__(FlatParameters)
        copy._places = self._places
        copy.shadow = self.shadow.clone()
        copy.matrices = nn.Parameter(copy.shadow, requires_grad=False)
        copy.vectors = nn.Parameter(self.vectors.data.clone(), requires_grad=False)
        return copy
