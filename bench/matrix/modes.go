package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/quota"
)

// A mode is a way to share the GPU.
type mode string

const (
	plain     mode = "plain"      // the driver's time slices
	hooked    mode = "hooked"     // the hook and the broker
	mps       mode = "mps"        // clients of CUDA MPS
	mpsParts  mode = "mps-parts"  // each with its weight as its percentage of active threads
	mpsHooked mode = "mps-hooked" // clients of CUDA MPS, under the hook, with the broker's sharing: concurrent
)

var modes = []mode{plain, hooked, mps, mpsParts, mpsHooked}

func (m mode) hooks() bool { return m == hooked || m == mpsHooked }
func (m mode) mps() bool   { return strings.HasPrefix(string(m), "mps") }

// parseModes parses names between commas. The parts of all modes are compared with plain.
func parseModes(list string) (all []mode, err error) {
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(modes, mode(name)) {
			return nil, fmt.Errorf("there is no mode %q: the modes are %v", name, modes)
		}
		all = append(all, mode(name))
	}
	return all, nil
}

// environment makes a worker a program of this mode. The percentage is that of its active threads.
func (r *rig) environment(m mode, tenant string, percent int) (env []string) {
	if m.hooks() {
		env = append(env, "LD_PRELOAD="+r.hook, "GPUSTEWARD_SOCKET="+r.socket(m), "GPUSTEWARD_TENANT="+tenant)
	}
	if m.mps() {
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+r.pipes())
	}
	if m == mpsParts {
		env = append(env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent))
	}
	return env
}

// A rig has what the modes need: brokers, which run in this process, and a daemon of MPS.
type rig struct {
	hook, dir string
	brokers   map[mode]*broker.Broker
}

func (r *rig) socket(m mode) string { return filepath.Join(r.dir, string(m)+".sock") }

func (r *rig) pipes() string { return filepath.Join(r.dir, "mps") }

// control runs MPS's control program, with a command on its standard input.
func (r *rig) control(command string, args ...string) error {
	cmd := exec.Command("nvidia-cuda-mps-control", args...)
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+r.pipes(), "CUDA_MPS_LOG_DIRECTORY="+r.dir)
	cmd.Stdin = strings.NewReader(command)
	var said bytes.Buffer
	if len(args) == 0 { // the daemon would keep the pipe open
		cmd.Stdout, cmd.Stderr = &said, &said
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nvidia-cuda-mps-control %v: %w %s", args, err, said.Bytes())
	}
	return nil
}

func (r *rig) startMPS() error {
	return errors.Join(os.MkdirAll(r.pipes(), 0o755), r.control("", "-d"))
}

func (r *rig) stopMPS() { _ = r.control("quit\n") }

// A book is a policy: a process is the tenant that it asks for.
type book map[string]broker.Quota

func (b book) Tenant(_ broker.Facts, wished string) (string, error) {
	if _, ok := b[wished]; !ok {
		return "", errors.New("no such tenant")
	}
	return wished, nil
}

func (b book) Quota(tenant, _ string) broker.Quota { return b[tenant] }

func (b book) Tenants() (names []string) {
	for name := range b {
		names = append(names, name)
	}
	return names
}

// terms returns the terms for a cell. All other tenants are present with negligible ones.
func terms(tenants []string, cell []member, cap uint64) book {
	b := book{}
	for _, name := range tenants {
		b[name] = broker.Quota{Quota: quota.Quota{Limit: 1, Memory: cap}, Weight: 1}
	}
	for _, a := range cell {
		q := b[a.Tenant]
		q.Weight = a.Weight
		if a.Realtime { // realtime requires a limit
			q.Class, q.Limit = schedule.Realtime, 0.9
		}
		b[a.Tenant] = q
	}
	return b
}
