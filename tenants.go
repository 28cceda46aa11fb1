package main

import (
	"fmt"
	"time"

	"gpusteward/enforcer/policy"
)

// DefaultConfig is what whoever no tenant is for may have of each GPU.
type DefaultConfig struct {
	Priority policy.Priority `yaml:"priority"`
	Limit    part            `yaml:"limit"`
	Memory   size            `yaml:"memory"`
}

// LadderConfig says what is done about workloads that violate their quota.
type LadderConfig struct {
	Mode     policy.Rung   `yaml:"mode"`
	Shadow   bool          `yaml:"shadow"`
	Confirm  count         `yaml:"confirm"`
	Of       count         `yaml:"of"`
	Hold     time.Duration `yaml:"hold"`
	Throttle part          `yaml:"throttle"`
	Pause    []string      `yaml:"pause"`
	Grace    time.Duration `yaml:"grace"`
	Actions  count         `yaml:"actions"`
}

// TenantConfig says who a tenant is, and what it may have of each GPU.
type TenantConfig struct {
	Name       string           `yaml:"name"`
	Select     []SelectorConfig `yaml:"select"`
	Binding    bool             `yaml:"binding"`
	Priority   *policy.Priority `yaml:"priority"` // nil is normal
	QuotaTerms `yaml:",inline"`
	Ladder     TenantLadder `yaml:"ladder"`
	GPUs       []GPUConfig  `yaml:"gpus"`
}

// SelectorConfig is policy.Selector.
type SelectorConfig struct {
	Units         []string `yaml:"units"`
	Slices        []string `yaml:"slices"`
	Pods          []string `yaml:"pods"`
	Containers    []string `yaml:"containers"`
	SlurmUsers    []string `yaml:"slurm_users"`
	SlurmAccounts []string `yaml:"slurm_accounts"`
	Users         []string `yaml:"users"`
	Groups        []string `yaml:"groups"`
	Executables   []string `yaml:"executables"`
	Workloads     []string `yaml:"workloads"`
}

// QuotaTerms are what a tenant may have; nil is what it has without the key.
type QuotaTerms struct {
	Guarantee  *part          `yaml:"guarantee"`
	Limit      *part          `yaml:"limit"`
	Memory     *memory        `yaml:"memory"`
	Reserved   *size          `yaml:"memory_guarantee"`
	LaunchWait *time.Duration `yaml:"launch_wait"`
	Bandwidth  *part          `yaml:"bandwidth"`
}

// TenantLadder is LadderConfig for one tenant; nil is as there.
type TenantLadder struct {
	Mode     *policy.Rung   `yaml:"mode"`
	Shadow   *bool          `yaml:"shadow"`
	Confirm  *count         `yaml:"confirm"`
	Of       *count         `yaml:"of"`
	Hold     *time.Duration `yaml:"hold"`
	Throttle *part          `yaml:"throttle"`
	Pause    []string       `yaml:"pause"`
	Grace    *time.Duration `yaml:"grace"`
}

// GPUConfig has other terms for some GPUs.
type GPUConfig struct {
	GPU        []string `yaml:"gpu"` // indices, GPU instances of MIG (0:1) or UUIDs
	QuotaTerms `yaml:",inline"`
}

// table returns what the enforcer needs of c, and of files beside it.
func (c EnforcerConfig) table(files []*tenantFile) policy.Table {
	t := policy.Table{
		Default: policy.Terms{Priority: c.Default.Priority, Quota: policy.Quota{Limit: float64(c.Default.Limit), Memory: uint64(c.Default.Memory), Bandwidth: 1}},
		Steps:   TenantLadder{}.steps(c.Ladder),
		Actions: int(c.Ladder.Actions),
	}
	for _, tenant := range c.Tenants {
		t.Rules = append(t.Rules, tenant.rule(c.Ladder))
	}
	for _, f := range files {
		for i, tenant := range f.tenants {
			r := tenant.rule(c.Ladder)
			r.Key = fmt.Sprintf("%s[%d]", f.path, i)
			t.Rules = append(t.Rules, r)
		}
	}
	return t
}

// rule returns what the enforcer needs of a tenant, given everybody's ladder.
func (t TenantConfig) rule(all LadderConfig) policy.Rule {
	r := policy.Rule{Name: t.Name, Binding: t.Binding, Terms: policy.Terms{Priority: policy.PriorityNormal}, Steps: t.Ladder.steps(all)}
	set(&r.Priority, t.Priority)
	r.Quota = t.override(nil).Of(policy.Quota{Limit: 1, Bandwidth: 1})
	for _, s := range t.Select {
		r.Select = append(r.Select, policy.Selector(s))
	}
	for _, g := range t.GPUs {
		r.GPUs = append(r.GPUs, g.override(g.GPU))
	}
	return r
}

// override returns the terms as those of some GPUs.
func (q QuotaTerms) override(gpus []string) policy.Override {
	o := policy.Override{GPUs: gpus, Guarantee: (*float64)(q.Guarantee), Limit: (*float64)(q.Limit),
		Reserved: (*uint64)(q.Reserved), LaunchWait: q.LaunchWait, Bandwidth: (*float64)(q.Bandwidth)}
	if q.Memory != nil {
		o.Memory, o.MemoryPart = (*uint64)(&q.Memory.size), float64(q.Memory.part)
	}
	return o
}

// steps returns the tenant's ladder, given everybody's.
func (l TenantLadder) steps(all LadderConfig) policy.Steps {
	set(&all.Mode, l.Mode)
	set(&all.Shadow, l.Shadow)
	set(&all.Confirm, l.Confirm)
	set(&all.Of, l.Of)
	set(&all.Hold, l.Hold)
	set(&all.Throttle, l.Throttle)
	set(&all.Grace, l.Grace)
	if l.Pause != nil {
		all.Pause = l.Pause
	}
	return policy.Steps{Mode: all.Mode, Shadow: all.Shadow, Confirm: int(all.Confirm), Of: int(all.Of), Hold: all.Hold,
		Throttle: float64(all.Throttle), Pause: all.Pause, Grace: all.Grace}
}

// set sets value to what a key says, where it is there.
func set[T any](value, key *T) {
	if key != nil {
		*value = *key
	}
}
