"""Programs that wait for each step, as people write them: nothing here waits
more often than such a program does. Data and weights are random."""

import time

from report import Report

WARM_STEPS = 10
WARM_SECONDS = 0.5


class Program:
    """step ends when the GPU has done it; pause_s is what the program sleeps
    after a step, which is no part of it; after warm_steps of them nothing is left
    to allocate; seconds is the least that a step took."""

    def __init__(self, step, pause_s=0.0, warm_steps=WARM_STEPS):
        self.step, self.pause_s, self.warm_steps = step, pause_s, warm_steps
        self.seconds = float("inf")

    def warm(self, gang):
        end, steps = time.monotonic() + WARM_SECONDS, 0
        # All ranks of a gang do the same number of steps.
        while steps < self.warm_steps or gang.size == 1 and time.monotonic() < end:
            began = time.monotonic()
            self.step()
            self.seconds = min(self.seconds, time.monotonic() - began)
            steps += 1

    def run(self, seconds, gang):
        report = Report()
        end = report.began + int(seconds * 1e9)
        while True:
            began = time.monotonic_ns()
            gang.begin(began >= end)
            self.step()
            done = time.monotonic_ns()
            report.completed(done, 1, done - began)
            if done >= report.look:
                report.flush()
            if gang.ended():
                break
            if self.pause_s:
                time.sleep(self.pause_s)
        report.finish()


def steps(_):
    """Four matrix products, 0.8 ms on an H100, and a synchronize."""
    import torch
    from queues import multiply

    body = multiply(4)

    def step():
        body()
        torch.cuda.synchronize()

    return Program(step)


def streams(_):
    """Eight matrix products over four streams, and a synchronize."""
    import torch
    from queues import multiply

    lanes = [(torch.cuda.Stream(), multiply(1)) for _ in range(4)]
    torch.cuda.synchronize()  # the matrices were made on another stream

    def step():
        for _ in range(2):
            for stream, body in lanes:
                with torch.cuda.stream(stream):
                    body()
        torch.cuda.synchronize()

    return Program(step)


def jitted(_, layers=4, width=2048, batch=6144):
    """A training step in JAX, about 1.5 ms on an H100."""
    import functools

    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), layers + 1)
    weights = [0.02 * jax.random.normal(key, (width, width)) for key in keys[1:]]
    x = jax.random.normal(keys[0], (batch, width), jnp.bfloat16)

    def loss(weights, x):
        for w in weights:
            x = jax.nn.gelu(x @ w.astype(jnp.bfloat16))
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @functools.partial(jax.jit, donate_argnums=0)
    def update(weights, x):
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return [w - 1e-3 * slope for w, slope in zip(weights, slopes)], value

    def step():
        nonlocal weights
        weights, value = update(weights, x)
        value.block_until_ready()

    return Program(step)


def library(_, products=5, size=4096):
    """Double-precision products by cuBLAS in CuPy: one kernel each, 2 to 3 ms on an H100."""
    import cupy
    import numpy

    a, b = (cupy.asarray(numpy.random.random((size, size))) for _ in range(2))
    c = cupy.empty_like(a)

    def step():
        for _ in range(products):
            cupy.matmul(a, b, out=c)
        cupy.cuda.get_current_stream().synchronize()

    return Program(step)


def axpys(_, launches=10, size=64 << 20):
    """A kernel in Triton, 0.3 ms on an H100, and a synchronize after ten."""
    import axpy
    import torch

    x, y = torch.randn(size, device="cuda"), torch.zeros(size, device="cuda")

    def step():
        for _ in range(launches):
            axpy.launch(x, y)
        torch.cuda.synchronize()

    return Program(step)


def allocating(size):
    """An allocation of the driver and its release, without a framework."""
    import ctypes

    cu = ctypes.CDLL("libcuda.so.1")

    def check(code, what):
        if code:
            raise RuntimeError(f"{what}: error {code}")

    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    check(cu.cuInit(0), "cuInit")
    check(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    allocate, release = cu.cuMemAlloc_v2, cu.cuMemFree_v2
    allocate.argtypes, release.argtypes = (ctypes.c_void_p, ctypes.c_size_t), (ctypes.c_uint64,)
    there = ctypes.byref(at)

    def step():
        check(allocate(there, size), "cuMemAlloc")
        check(release(at), "cuMemFree")

    return Program(step)


def alloc64k(_):
    return allocating(64 << 10)


def alloc1m(_):
    return allocating(1 << 20)


def alloc20m(_):
    return allocating(20 << 20)


def alloc512m(_):
    return allocating(512 << 20)


def descend(optimizer, forward):
    """A step of training in mixed precision, and a wait for its loss."""
    import torch

    with torch.autocast("cuda", torch.bfloat16):
        loss = forward()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()


def gpt2(_, batch=4, length=512):
    """GPT-2 small in training, by Hugging Face's model."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(model.config.vocab_size, (batch, length), device="cuda")

    def step():
        descend(optimizer, lambda: model(input_ids=tokens, labels=tokens).loss)

    return Program(step)


def decode(_, prompt=16, length=64):
    """GPT-2 small, one token a step, for somebody who asks for one each 10 ms."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to("cuda", torch.bfloat16).eval()
    asked = torch.randint(model.config.vocab_size, (1, prompt), device="cuda")
    tokens, cache, done = asked, None, 0

    @torch.inference_mode()
    def step():
        nonlocal tokens, cache, done
        if done == length:
            tokens, cache, done = asked, None, 0
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache, tokens = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        done += 1
        tokens.item()

    return Program(step, pause_s=0.010, warm_steps=2 * length)


def resnet(batch=32):
    """ResNet-18 to train, its optimizer, and batches on the GPU; two forked processes make the images."""
    import torch
    from gang import end_with_parent
    from transformers import ResNetConfig, ResNetForImageClassification

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 30

        def __getitem__(self, i):
            return torch.randn(3, 224, 224), i % 1000

    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000)
    model = ResNetForImageClassification(config).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    made = torch.utils.data.DataLoader(
        Images(),
        batch_size=batch,
        num_workers=2,
        pin_memory=True,
        multiprocessing_context="fork",
        worker_init_fn=end_with_parent,
    )
    return model, optimizer, ([t.to("cuda", non_blocking=True) for t in pair] for pair in made)


def loader(_):
    """ResNet-18 in training; two forked processes make the images."""
    model, optimizer, batches = resnet()

    def step():
        images, labels = next(batches)
        descend(optimizer, lambda: model(pixel_values=images, labels=labels).loss)

    return Program(step)


def tick(_):
    """One tiny kernel each 10 ms."""
    import torch

    a, b, c = (torch.zeros(1024, device="cuda") for _ in range(3))

    def step():
        torch.add(a, b, out=c)
        torch.cuda.synchronize()

    return Program(step, pause_s=0.010)


def silent(_):
    """A context, and nothing that is ever launched: its steps are naps."""
    import torch

    held = torch.empty(1, device="cuda")

    def step():
        time.sleep(0.020)
        return held

    return Program(step)


def join(gang):
    """Makes the ranks one group of NCCL's, each on a GPU of its own."""
    import torch
    from torch import distributed

    device = torch.device("cuda", gang.rank)
    torch.cuda.set_device(device)
    store = distributed.TCPStore("127.0.0.1", gang.port, gang.size, is_master=gang.rank == 0)
    distributed.init_process_group("nccl", store=store, rank=gang.rank, world_size=gang.size, device_id=device)
    return distributed


def ddp(gang, layers=6, width=4096, batch=8192):
    """Data-parallel training of linear layers, 10 to 15 ms a step on two H200s."""
    import torch

    join(gang)
    torch.manual_seed(gang.rank)
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts).cuda(), device_ids=[gang.rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randn(batch, width, device="cuda")

    def step():
        descend(optimizer, lambda: model(x).square().mean())

    return Program(step)


def bcast(gang):
    """One word for all ranks, each 10 ms."""
    import torch

    distributed = join(gang)
    word = torch.zeros(1, device="cuda")

    def step():
        distributed.broadcast(word, 0)
        torch.cuda.synchronize()

    return Program(step, pause_s=0.010)
