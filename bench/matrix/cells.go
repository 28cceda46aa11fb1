package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// sets are cells, with ; between them. A number is a tenant's weight. In "two", a gang is on both GPUs; another
// program is on the first one, or on the second with @1. In "lone", programs have their GPU to themselves: what a mode
// costs them. Beside a tenant whose launches must not wait, silent as it is, the hook counts every launch.
var sets = map[string]string{
	"one": "steps 70 + steps 30; steps 70 + jax 30; steps 30 + jax 70; jax 30 + cupy 70; streams 70 + loader 30;" +
		"gpt2 70 + decode 30; queue 70 + tick 30; steps 70 + tick 30; gpt2 50 + silent 50;" +
		// These programs queue ahead.
		"queue 70 + queue 30; queue 90 + queue 10; queue 50 + queue 50; graph 70 + queue 30; graph10 30 + steps 70;" +
		"compiled 70 + jax 30; small 50 + small 50;" +
		// These programs wait, beside programs that do not, and beside each other.
		"triton 70 + steps 30; triton 30 + cupy 70; cupy 50 + queue 50; gpt2 70 + queue 30; loader 70 + steps 30;" +
		"steps 90 + jax 10; jax 90 + queue 10;" +
		// A user waits for each token.
		"decode realtime 30 + queue 70; decode realtime 30 + gpt2 70; decode realtime 30 + cupy 70; decode 30 + cupy 70;" +
		"decode 30 + steps 70;" +
		"queue 50 + steps 30 + jax 20; gpt2 50 + steps 30 + decode 20; cupy 50 + jax 30 + triton 20;" +
		"queue 50 + streams 30 + loader 20",
	"two": "ddp 70 + queue 30; ddp 70 + steps 30 + steps@1 30; ddp 50 + silent 50 + silent@1 50; ddp 50 + ddp 50;" +
		"bcast 50 + steps@1 50",
	"lone": "train 100; gpt2 100; steps 100; decode 100; loader 100; small 100; launches 100;" +
		"train 50 + silent realtime 50; gpt2 50 + silent realtime 50; small 50 + silent realtime 50",
	// Programs that allocate all the time, for -memory.
	"memory": "alloc64k 100; alloc1m 100; alloc20m 100; alloc512m 100",
}

// gangs are kinds with a process on each GPU. The programs of all kinds are in enforcer/hook/bench.
var gangs = []string{"ddp", "bcast"}

// A member is one program of a cell: a tenant with a worker of its own.
type member struct {
	Kind     string  `json:"kind"`
	Tenant   string  `json:"tenant"`
	Weight   float64 `json:"weight"`
	Realtime bool    `json:"realtime,omitempty"`
	GPUs     []int   `json:"gpus"`
}

// silent reports whether a member has no throughput.
func (m member) silent() bool { return m.Kind == "silent" }

// program names a member's program and its GPUs: its lone throughput depends on
// nothing else.
func (m member) program() string { return fmt.Sprint(m.Kind, m.GPUs) }

// parseCell parses a cell in the notation of onOne.
func parseCell(spec string) (members []member, err error) {
	seen := map[string]int{}
	for words := range strings.SplitSeq(spec, " + ") {
		f := strings.Fields(words)
		m := member{GPUs: []int{0}}
		if len(f) == 3 && f[1] == "realtime" {
			m.Realtime, f = true, []string{f[0], f[2]}
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("%q: want KIND[@GPU] [realtime] WEIGHT", words)
		}
		kind, gpu, placed := strings.Cut(f[0], "@")
		m.Kind, m.Tenant = kind, strings.ReplaceAll(f[0], "@", "-gpu")
		if placed {
			if m.GPUs[0], err = strconv.Atoi(gpu); err != nil {
				return nil, fmt.Errorf("%q: %w", words, err)
			}
		}
		if slices.Contains(gangs, kind) {
			m.GPUs = []int{0, 1}
		}
		if m.Weight, err = strconv.ParseFloat(f[1], 64); err != nil {
			return nil, fmt.Errorf("%q: %w", words, err)
		}
		if seen[f[0]]++; seen[f[0]] > 1 {
			m.Tenant += fmt.Sprint("-", seen[f[0]])
		}
		members = append(members, m)
	}
	return members, nil
}
