package config

import (
	"fmt"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
)

// Default is the terms of processes without a tenant, on each GPU.
type Default struct {
	Priority priority `yaml:"priority"`
	Limit    part     `yaml:"limit"`
	Memory   size     `yaml:"memory"`
	Reclaim  Reclaim  `yaml:"reclaim"`
}

// Reclaim says when a workload gives its GPU memory back by itself.
type Reclaim struct {
	Idle time.Duration `yaml:"idle"`
	Keep size          `yaml:"keep"`
	Do   string        `yaml:"do,omitempty"` // of older files, without effect
}

func (r Reclaim) terms() policy.Reclaim { return policy.Reclaim{Idle: r.Idle, Keep: uint64(r.Keep)} }

// Overcommit says on which GPUs more workloads may have memory than fit.
type Overcommit struct {
	GPUs []string      `yaml:"gpus"` // indices, GPU instances of MIG, UUIDs, or all
	Turn time.Duration `yaml:"turn"`
}

// Escalation says how to react to workloads that violate their quota.
type Escalation struct {
	Mode     level         `yaml:"mode"`
	Shadow   bool          `yaml:"shadow"`
	Confirm  count         `yaml:"confirm"`
	Of       count         `yaml:"of"`
	Hold     time.Duration `yaml:"hold"`
	Throttle part          `yaml:"throttle"`
	Pause    []string      `yaml:"pause"`
	Grace    time.Duration `yaml:"grace"`
	Actions  count         `yaml:"actions"`
}

// Tenant says which processes belong to a tenant, and what it may have of each
// GPU.
type Tenant struct {
	Name       string           `yaml:"name"`
	Select     []Selector       `yaml:"select"`
	Binding    bool             `yaml:"binding"`
	Priority   *priority        `yaml:"priority"` // nil is normal
	Terms      terms            `yaml:",inline"`
	Reclaim    Reclaim          `yaml:"reclaim"`
	Escalation TenantEscalation `yaml:"ladder"`
	GPUs       []GPU            `yaml:"gpus"`

	written quota.Written
}

// Selector is policy.Selector.
type Selector struct {
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

// TenantEscalation is Escalation for one tenant; nil keeps the value of
// Escalation.
type TenantEscalation struct {
	Mode     *level         `yaml:"mode"`
	Shadow   *bool          `yaml:"shadow"`
	Confirm  *count         `yaml:"confirm"`
	Of       *count         `yaml:"of"`
	Hold     *time.Duration `yaml:"hold"`
	Throttle *part          `yaml:"throttle"`
	Pause    []string       `yaml:"pause"`
	Grace    *time.Duration `yaml:"grace"`
}

// GPU has other terms for some GPUs.
type GPU struct {
	GPU   []string `yaml:"gpu"` // indices, GPU instances of MIG (0:1) or UUIDs
	Terms terms    `yaml:",inline"`

	written quota.Written
}

// Table returns the enforcer's table of c and of the files.
func (c Enforcer) Table(files []*TenantFile) policy.Table {
	t := policy.Table{
		Default: policy.Terms{Priority: policy.Priority(c.Default.Priority), Quota: quota.Free(), Reclaim: c.Default.Reclaim.terms()},
		Steps:   TenantEscalation{}.steps(c.Escalation),
		Actions: int(c.Escalation.Actions), Overcommit: c.Overcommit.GPUs, Turn: c.Overcommit.Turn,
	}
	t.Default.Limit, t.Default.Memory = float64(c.Default.Limit), uint64(c.Default.Memory)
	for _, tenant := range c.Tenants {
		t.Rules = append(t.Rules, tenant.rule(c.Escalation))
	}
	for _, f := range files {
		for i, tenant := range f.tenants {
			r := tenant.rule(c.Escalation)
			r.Key = fmt.Sprintf("%s[%d]", f.Path, i)
			t.Rules = append(t.Rules, r)
		}
	}
	return t
}

// rule returns the enforcer's rule for a tenant, given the common escalation.
func (t Tenant) rule(all Escalation) policy.Rule {
	r := policy.Rule{Name: t.Name, Binding: t.Binding, Terms: policy.Terms{Priority: policy.PriorityNormal, Reclaim: t.Reclaim.terms()},
		Steps: t.Escalation.steps(all)}
	set(&r.Priority, (*policy.Priority)(t.Priority))
	r.Quota = t.written.Over(quota.Free())
	for _, s := range t.Select {
		r.Select = append(r.Select, policy.Selector(s))
	}
	for _, g := range t.GPUs {
		r.GPUs = append(r.GPUs, policy.Override{GPUs: g.GPU, Written: g.written})
	}
	return r
}

// steps returns the tenant's escalation, given the common one.
func (l TenantEscalation) steps(all Escalation) policy.Steps {
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
	return policy.Steps{Mode: policy.Level(all.Mode), Shadow: all.Shadow, Confirm: int(all.Confirm), Of: int(all.Of), Hold: all.Hold,
		Throttle: float64(all.Throttle), Pause: all.Pause, Grace: all.Grace}
}

// set sets value if the key is there.
func set[T any](value, key *T) {
	if key != nil {
		*value = *key
	}
}
