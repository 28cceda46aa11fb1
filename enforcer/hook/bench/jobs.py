"""A program as people write it, in a loop of its own, which writes down when each
of its steps ended.

    jobs.py KIND SECONDS FILE

FILE gets one JSON object: kind, pid, rank, and ends, the CLOCK_MONOTONIC
nanoseconds at which each step ended, as a timer in the loop sees it. It is empty
for a kind that has no steps. GS_PROFILED names a file for what torch.profiler sees
from the middle of the run on, for a quarter of its time: one JSON object, us and
launches by kernel. Kinds of several ranks start one process for each GPU; each
writes FILE.RANK.
"""

import json
import os
import random
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".10")
# A program that uses NVLink's multicast can put a shared host's GPUs out of service.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")


class Loop:
    """while loop.goes_on(): a step. Each call after the first ends a step."""

    def __init__(self, seconds):
        self.seconds, self.ends, self.began, self.until = seconds, [], None, None
        self.profiler, self.profiled = None, os.environ.get("GS_PROFILED")

    def profile(self, part):
        import torch

        if self.profiler is None and part >= 0.5:
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profiler.start()
        elif part >= 0.75:
            torch.cuda.synchronize()
            self.profiler.stop()
            times = {}
            for e in self.profiler.events():
                if not e.name.startswith(("Memcpy", "Memset")):
                    us, launches = times.get(e.name, (0, 0))
                    times[e.name] = us + e.device_time_total, launches + 1
            with open(self.profiled, "w") as out:
                json.dump(times, out)
            self.profiled = None

    def goes_on(self):
        now = time.monotonic_ns()
        if self.profiled and self.began is not None and now - self.began >= self.seconds / 2 * 1e9:
            self.profile((now - self.began) / 1e9 / self.seconds)
        if self.began is None:
            self.began, self.until = now, now + int(self.seconds * 1e9)
            if self.profiled:
                print("began", flush=True)
        else:
            self.ends.append(now)
        return now < self.until


def network(torch, width=2048, layers=6):
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).cuda()


def trained(torch, model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def parts(torch, batch=2048, width=2048):
    model = network(torch, width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-5), torch.randn(batch, width, device="cuda")


def eager(loop):
    import torch

    model, optimizer, x = parts(torch)
    while loop.goes_on():
        trained(torch, model, optimizer, x).item()


def tenth(loop):
    """The loss is read each tenth step, as logs are written."""
    import torch

    model, optimizer, x = parts(torch)
    step = 0
    while loop.goes_on():
        loss = trained(torch, model, optimizer, x)
        step += 1
        if step % 10 == 0:
            loss.item()


def queue(loop):
    """It never waits for the GPU."""
    import torch

    model, optimizer, x = parts(torch)
    while loop.goes_on():
        trained(torch, model, optimizer, x)


def compiled(loop):
    import torch

    model, optimizer, x = parts(torch)
    fast = torch.compile(model)
    while loop.goes_on():
        trained(torch, fast, optimizer, x).item()


def graph(loop):
    """One graph a step, and new data copied in."""
    import torch

    model, optimizer, x = parts(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            trained(torch, model, optimizer, x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = trained(torch, model, optimizer, x)
    batches = [torch.randn(2048, 2048).pin_memory() for _ in range(4)]
    step = 0
    while loop.goes_on():
        x.copy_(batches[step % 4], non_blocking=True)
        captured.replay()
        loss.item()
        step += 1


def accumulate(loop):
    """Four small batches a step."""
    import torch

    model, optimizer, x = parts(torch, batch=512)
    while loop.goes_on():
        optimizer.zero_grad()
        for _ in range(4):
            loss = model(x).square().mean() / 4
            loss.backward()
        optimizer.step()
        loss.item()


def amp(loop):
    import torch

    model, optimizer, x = parts(torch)
    scaler = torch.amp.GradScaler("cuda")
    while loop.goes_on():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def loader(loop):
    """ResNet-18; two forked processes make the images more slowly than the GPU takes them."""
    from programs import resnet

    model, optimizer, batches = resnet()
    while loop.goes_on():
        images, labels = next(batches)
        optimizer.zero_grad()
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        loss.item()


def language(batch=4, length=512):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    return torch, model, torch.optim.AdamW(model.parameters(), lr=1e-5), torch.randint(
        model.config.vocab_size, (batch, length), device="cuda"
    )


def gpt2(loop, **batch):
    torch, model, optimizer, tokens = language(**batch)
    while loop.goes_on():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def gpt2_large(loop):
    """Batches that fill a GPU."""
    gpt2(loop, batch=8, length=1024)


def changing(loop):
    """GPT-2 with a batch from the host each step. The first word of the file GS_FAULT says what is wrong with its steps."""
    import gc
    import mmap

    import torch

    torch, model, optimizer, _ = language()
    batches = {n: torch.randint(50257, (4, n)).pin_memory() for n in (512, 768)}
    ballast, big = [], os.path.join(os.path.dirname(os.environ["GS_FAULT"]), "data")
    with open(big, "wb") as out:
        out.write(os.urandom(1 << 28))
    try:
        file = os.open(big, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system in memory
        file = os.open(big, os.O_RDONLY)
    page = mmap.mmap(-1, 1 << 22)
    usual, at = 0.025, 0

    def lasting(piece):
        """Does pieces for two fifths of a usual step."""
        end = time.monotonic() + 0.4 * usual
        while time.monotonic() < end:
            piece()

    def read():
        nonlocal at
        os.preadv(file, [page], at)
        at = (at + len(page)) % (1 << 28)

    while loop.goes_on():
        began = time.monotonic()
        with open(os.environ["GS_FAULT"]) as told:
            fault = told.read().strip()
        if fault == "data":
            time.sleep(0.4 * usual)
        elif fault == "garbage":
            if not ballast:
                ballast.extend([i] for i in range(300000))
            lasting(gc.collect)
        elif fault == "storage":
            lasting(read)
        tokens = batches[768 if fault == "work" else 512].to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        if fault == "memory":
            lasting(lambda: (torch.empty(1 << 26, device="cuda"), torch.cuda.empty_cache()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if fault != "garbage":
            ballast.clear()
        if not fault:
            usual += 0.05 * (time.monotonic() - began - usual)


def padding(loop):
    """Batches as long as their longest sentence."""
    torch, model, optimizer, tokens = language(length=640)
    random.seed(1)
    while loop.goes_on():
        cut = tokens[:, : random.randint(128, 640)]
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=cut, labels=cut).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def trainer(loop):
    """Hugging Face's Trainer: a log line each 10 steps, an evaluation each 50, a checkpoint each 100."""
    import tempfile

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Texts(torch.utils.data.Dataset):
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            ids = torch.randint(50257, (256,), generator=torch.Generator().manual_seed(i))
            return {"input_ids": ids, "labels": ids}

    class Timer(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if loop.began is None:
                loop.goes_on()

        def on_step_end(self, args, state, control, **_):
            if not loop.goes_on():
                control.should_training_stop = True

    model = GPT2LMHeadModel(GPT2Config(n_layer=6))
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place, per_device_train_batch_size=8, max_steps=100000, logging_steps=10, eval_strategy="steps",
            eval_steps=50, save_steps=100, save_total_limit=1, bf16=True, report_to=[], disable_tqdm=True,
            dataloader_num_workers=2, per_device_eval_batch_size=8,
        )
        Trainer(model, arguments, train_dataset=Texts(1 << 20), eval_dataset=Texts(64), callbacks=[Timer()]).train()


def gan(loop):
    """Two networks in turn."""
    import torch

    one, first, x = parts(torch)
    two, second, y = parts(torch)
    while loop.goes_on():
        second.zero_grad()
        (two(x).square().mean() - two(one(y).detach()).square().mean()).backward()
        second.step()
        first.zero_grad()
        two(one(y)).square().mean().backward()
        first.step()


def jax(loop):
    import functools

    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 5)
    weights = [0.02 * jax.random.normal(key, (2048, 2048)) for key in keys[1:]]
    x = jax.random.normal(keys[0], (6144, 2048), jnp.bfloat16)

    def loss(weights, x):
        for w in weights:
            x = jax.nn.gelu(x @ w.astype(jnp.bfloat16))
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @functools.partial(jax.jit, donate_argnums=0)
    def update(weights, x):
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return [w - 1e-3 * slope for w, slope in zip(weights, slopes)], value

    weights, value = update(weights, x)
    while loop.goes_on():
        weights, value = update(weights, x)
        value.block_until_ready()


def triton(loop):
    """A step is a norm, a product and an update by kernels of its own."""
    import axpy
    import torch

    x, y = torch.randn(1 << 26, device="cuda"), torch.zeros(1 << 26, device="cuda")
    w = torch.randn(4096, 4096, device="cuda")
    while loop.goes_on():
        for _ in range(6):
            axpy.launch(x, y)
        v = w @ w
        axpy.launch(y, x)
        w = v / v.norm()
        torch.cuda.synchronize()


def requests(loop):
    """Inference: requests of any length, at any time. There are no steps."""
    torch, model, _, tokens = language(batch=1, length=1000)
    model = model.to(torch.bfloat16).eval()
    random.seed(2)
    until = time.monotonic() + loop.seconds
    with torch.inference_mode():
        while time.monotonic() < until:
            model(input_ids=tokens[:, : random.randint(10, 1000)]).logits[:, -1].argmax().item()
            time.sleep(random.expovariate(20))


def decode(loop):
    """Generation: requests with answers of any length. There are no steps."""
    torch, model, _, tokens = language(batch=1, length=200)
    model = model.to(torch.bfloat16).eval()
    random.seed(3)
    until = time.monotonic() + loop.seconds
    with torch.inference_mode():
        while time.monotonic() < until:
            n = random.randint(5, 60)
            model.generate(tokens[:, : random.randint(5, 200)], min_new_tokens=n, max_new_tokens=n, do_sample=False,
                           pad_token_id=0)
            time.sleep(random.expovariate(5))


def notebook(loop):
    """A person: a cell now and then."""
    import torch

    random.seed(4)
    until = time.monotonic() + loop.seconds
    a = torch.randn(2048, 2048, device="cuda")
    cells = [lambda: (a @ a).sum().item(), lambda: torch.linalg.svd(a[:256, :256]), lambda: a.cpu(),
             lambda: torch.randn(4096, 4096, device="cuda").sort().values.mean().item(), lambda: a.softmax(-1).std().item()]
    while time.monotonic() < until:
        random.choice(cells)()
        time.sleep(random.expovariate(2))


def endless(loop):
    """One kernel, again and again. There are no steps."""
    import torch

    a = torch.randn(1024, 1024, device="cuda")
    b = torch.empty_like(a)
    until = time.monotonic() + loop.seconds
    while time.monotonic() < until:
        torch.mm(a, a, out=b)


def join(rank, ranks):
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    store = distributed.TCPStore("127.0.0.1", int(os.environ["GS_PORT"]), ranks, is_master=rank == 0)
    distributed.init_process_group("nccl", store=store, rank=rank, world_size=ranks,
                                   device_id=torch.device("cuda", rank))
    return torch


def together(torch, loop, train):
    """All ranks end with the same step: the first one decides."""
    from torch import distributed

    over = torch.zeros(1)
    group = distributed.new_group(backend="gloo")
    step = 0
    while True:
        on = loop.goes_on()
        if step % 20 == 0:
            over[0] = 0 if on else 1
            distributed.broadcast(over, 0, group=group)
            if over[0]:
                return
        train()
        step += 1


def ddp(loop, rank=0, ranks=1, slow=None, hang=None):
    """Data-parallel training. slow: this rank works 20 % longer from the middle on."""
    torch = join(rank, ranks)
    model = replicated(torch, network(torch, 4096), rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randn(8192, 4096, device="cuda")
    began = time.monotonic()

    def train():
        since = time.monotonic()
        trained(torch, model, optimizer, x).item()
        if slow == rank and since - began > loop.seconds / 2:
            time.sleep(0.2 * (time.monotonic() - since))

    together(torch, loop, train)


def fsdp(loop, rank=0, ranks=1):
    torch = join(rank, ranks)
    model = sharded(torch, network(torch, 4096), rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randn(4096, 4096, device="cuda")
    together(torch, loop, lambda: trained(torch, model, optimizer, x).item())


def straggler(loop, rank=0, ranks=1):
    ddp(loop, rank, ranks, slow=1)


def late(wrap, width):
    """Ranks of which one comes late: the file GS_FAULT names it and how much longer its steps get, such as 1 0.15."""

    def run(loop, rank=0, ranks=1):
        torch = join(rank, ranks)
        model = wrap(torch, network(torch, width), rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        x = torch.randn(1024, width, device="cuda")
        usual = 0.02

        def train():
            nonlocal usual
            began = time.monotonic()
            with open(os.environ["GS_FAULT"]) as told:
                fault = told.read().split()
            if len(fault) == 2 and int(fault[0]) == rank:
                end = began + float(fault[1]) * usual
                while time.monotonic() < end:  # what a loader, a log or a transformation of data costs
                    pass
            trained(torch, model, optimizer, x).item()
            if not fault:
                usual += 0.05 * (time.monotonic() - began - usual)

        together(torch, loop, train)

    return run


def replicated(torch, model, rank):
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])


def sharded(torch, model, rank):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    return model


def load_forever():
    time.sleep(1e6)


def hanging(fault):
    """The last rank trains 100 steps, and then does what fault says."""

    def run(loop, rank=0, ranks=1):
        import signal

        torch = join(rank, ranks)
        from torch import distributed

        model, optimizer, x = parts(torch)
        groups = [distributed.new_group() for _ in range(2)]
        sums = torch.zeros(1000, device="cuda")

        def meet(group):
            distributed.all_reduce(sums, group=group)
            torch.cuda.synchronize()

        def step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if fault == "deadlock":
                for group in reversed(groups) if loop.hung else groups:
                    meet(group)
            if not (fault == "skip" and loop.hung):
                for p in model.parameters():
                    distributed.all_reduce(p.grad)
            if fault == "unlike" and loop.hung:
                distributed.all_reduce(torch.zeros(1000, device="cuda"))
            optimizer.step()
            return loss.item()

        for i in range(1000000):
            loop.goes_on()
            loop.hung = i >= 100 and rank == ranks - 1
            if loop.hung and fault == "loader":
                load_forever()
            if loop.hung and fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if loop.hung and fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if loop.hung and fault == "kernel":
                torch.cuda._sleep(1 << 60)
            if i == 100 and rank == 0:
                print("hangs", time.monotonic_ns(), flush=True)
            step()
            if loop.hung and fault == "skip":
                time.sleep(1e6)

    return run


def stuck(how):
    """A program without other ranks, whose work does not end from its hundredth and some step on."""

    def run(loop):
        import http.server
        import threading
        import urllib.request

        import torch

        model, optimizer, x = parts(torch)
        forever = torch.cuda.CUDAGraph()
        if how == "graph":
            y = torch.zeros(1000, device="cuda")
            trained(torch, model, optimizer, x)
            torch.cuda.synchronize()
            with torch.cuda.graph(forever):
                y.add_(1).tanh_()
                torch.cuda._sleep(1 << 60)
        side = torch.cuda.Stream()

        def step():
            return trained(torch, model, optimizer, x).item()

        def hang():
            print("hangs", time.monotonic_ns(), flush=True)
            if how == "graph":
                forever.replay()
                torch.cuda.synchronize()
            elif how == "stream":
                with torch.cuda.stream(side):
                    torch.cuda._sleep(1 << 60)
                side.synchronize()
            else:
                torch.cuda._sleep(1 << 60)
                step()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hang() if self.path == "/hang" else step()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        if how == "server":
            server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        for i in range(random.randrange(100, 200)):
            if how == "server":
                urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()
                time.sleep(random.random() / 10)
            else:
                step()
        if how == "server":
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/hang").read()
        hang()

    return run


FAULTS = ("loader", "skip", "unlike", "stop", "die", "kernel", "deadlock")
STUCK = {f"stuck_{how}": stuck(how) for how in ("eager", "graph", "stream", "server")}
GANGS = {"ddp": ddp, "fsdp": fsdp, "straggler": straggler, "late_ddp": late(replicated, 2048),
         "late_small": late(replicated, 1024), "late_fsdp": late(sharded, 2048),
         **{f"hang_{fault}": hanging(fault) for fault in FAULTS}}


def main():
    kind, seconds, file = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    loop, rank = Loop(seconds), None
    if kind in GANGS:
        import socket

        import torch  # counts the GPUs without a context

        ranks = torch.cuda.device_count()
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ.setdefault("GS_PORT", str(free.getsockname()[1]))
        rank = int(os.environ.get("GS_RANK", "0"))
        if rank == 0:
            import subprocess

            for other in range(1, ranks):
                subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "GS_RANK": str(other)})
        file = f"{file}.{rank}"
        GANGS[kind](loop, rank, ranks)
    else:
        (STUCK.get(kind) or globals()[kind])(loop)
    with open(file + ".new", "w") as out:
        json.dump({"kind": kind, "pid": os.getpid(), "rank": rank, "began": loop.began, "ends": loop.ends}, out)
    os.rename(file + ".new", file)
    os._exit(0)


main()
