package enforcer

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os/user"
	"strings"
	"testing"

	"gpusteward/enforcer/broker"
)

// half is a quota that differs from the default one.
var half = Quota{Weight: 2, Limit: 0.5, Memory: 1 << 30}

var full = Quota{Weight: 1, Limit: 1}

func policy(rules ...Rule) *Policy {
	for i := range rules {
		rules[i].Quota = half
	}
	return NewPolicy(Table{Default: full, Rules: rules}, slog.New(slog.DiscardHandler))
}

func TestTheFactsSayWhoATenantIs(t *testing.T) {
	p := policy(
		Rule{Name: "serving", Workloads: []string{"unit:triton*.service", "slurm:4*"}},
		Rule{Name: "alice", Users: []string{"1001", "1003"}},
		Rule{Name: "lab", Groups: []string{"500"}, Executables: []string{"/opt/lab/*/python?"}},
		Rule{Name: "alice-low", Users: []string{"1001"}},
		Rule{Name: "batch"},
	)
	triton := "0::/system.slice/triton-2.service\n"
	for name, c := range map[string]struct {
		facts        broker.Facts
		wished, want string
		err          error
	}{
		"by unit":                        {facts: broker.Facts{Cgroup: triton}, want: "serving"},
		"by job":                         {facts: broker.Facts{UID: 7, Cgroup: "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"}, want: "serving"},
		"by user":                        {facts: broker.Facts{UID: 1001}, want: "alice"},
		"by another user":                {facts: broker.Facts{UID: 1003}, want: "alice"},
		"the first one wins":             {facts: broker.Facts{UID: 1001, Cgroup: triton}, want: "serving"},
		"by group and executable":        {facts: broker.Facts{GID: 500, Exe: "/opt/lab/a/b/python3"}, want: "lab"},
		"by another group":               {facts: broker.Facts{GID: 1, Groups: []uint32{4, 500}, Exe: "/opt/lab/a/python3"}, want: "lab"},
		"by group alone":                 {facts: broker.Facts{GID: 500, Exe: "/usr/bin/python3"}, want: "default"},
		"by executable alone":            {facts: broker.Facts{GID: 501, Exe: "/opt/lab/a/python3"}, want: "default"},
		"by nothing":                     {facts: broker.Facts{UID: 1002}, want: "default"},
		"a user's unit is not a unit":    {facts: broker.Facts{UID: 1002, Cgroup: "0::/user.slice/user-1002.slice/user@1002.service/app.slice/triton-2.service\n"}, want: "default"},
		"its own, asked for":             {facts: broker.Facts{UID: 1001}, wished: "alice", want: "alice"},
		"another that fits":              {facts: broker.Facts{UID: 1001}, wished: "alice-low", want: "alice-low"},
		"a later one that fits":          {facts: broker.Facts{UID: 1001, Cgroup: triton}, wished: "alice", want: "alice"},
		"without selectors":              {facts: broker.Facts{UID: 1001}, wished: "batch", want: "batch"},
		"without selectors, by a nobody": {facts: broker.Facts{UID: 1002}, wished: "batch", want: "batch"},
		"default, whose it is":           {facts: broker.Facts{UID: 1002}, wished: "default", want: "default"},
		"default, as a way out":          {facts: broker.Facts{UID: 1001}, wished: "default", err: errNotYours},
		"another's":                      {facts: broker.Facts{UID: 1002}, wished: "alice", err: errNotYours},
		"root is no exception":           {facts: broker.Facts{UID: 0}, wished: "alice", err: errNotYours},
		"nobody's":                       {facts: broker.Facts{UID: 1001}, wished: "bob", err: errUnknown},
	} {
		got, err := p.Tenant(c.facts, c.wished)
		if !errors.Is(err, c.err) || got.Name != c.want {
			t.Errorf("%s: %q, %v; want %q, %v", name, got.Name, err, c.want, c.err)
		}
		quota := Quota{got.Weight, got.Limit, got.Memory}
		if err == nil && (got.Name == DefaultTenant) != (quota == full) || err == nil && (got.Name != DefaultTenant) != (quota == half) {
			t.Errorf("%s: %q has %v", name, got.Name, quota)
		}
	}
}

func TestNamesOfUsersAndGroupsAreLookedUp(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := NewPolicy(Table{Default: full, Rules: []Rule{
		{Name: "ghost", Users: []string{"no-such-user"}, Quota: half},
		{Name: "mine", Users: []string{"no-such-user", me.Username}, Groups: []string{group.Name}, Quota: half},
	}}, slog.New(slog.NewTextHandler(&log, nil)))
	uid, gid := ids([]string{me.Uid}, nil, slog.Default())[0], ids([]string{me.Gid}, nil, slog.Default())[0]
	if got, err := p.Tenant(broker.Facts{UID: uid, GID: gid}, ""); err != nil || got.Name != "mine" {
		t.Errorf("%s of %s is of %q, %v", me.Username, group.Name, got.Name, err)
	}
	if _, err := p.Tenant(broker.Facts{UID: uid + 1, GID: gid}, "ghost"); !errors.Is(err, errNotYours) {
		t.Errorf("a tenant whose only user does not exist is given away: %v", err)
	}
	if !strings.Contains(log.String(), "no-such-user") || !strings.Contains(log.String(), "ghost") {
		t.Errorf("nothing is said of a user that does not exist: %q", log.String())
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a/b", true}, {"a", "a", true}, {"a", "b", false}, {"a", "ab", false},
		{"?", "", false}, {"?", "a", true}, {"a?c", "abc", true}, {"pod:*/vllm", "pod:a/b/vllm", true}, {"pod:*/vllm", "pod:a/vllm2", false},
		{"*a*b", "xaxaxb", true}, {"*a*b", "xaxbx", false}, {"**", "x", true}, {"a*a", "a", false}, {"unit:*.service", "unit:x.scope", false}, {"[a]", "a", false},
		{strings.Repeat("*a", 40) + "b", strings.Repeat("a", 4000), false}, // and at once
	} {
		if got := glob(c.pattern, c.name); got != c.want {
			t.Errorf("glob(%.20q, %.20q) = %v", c.pattern, c.name, got)
		}
	}
}

// What a configuration file can hold besides is in testdata/config/invalid of
// the program.
func TestCheckNamesTheKey(t *testing.T) {
	many := make([]Rule, maxTenants+1)
	for want, table := range map[string]Table{
		"default.weight":    {Default: Quota{Weight: math.NaN(), Limit: 1}},
		"default.limit":     {Default: Quota{Weight: 1}},
		"tenants[0].weight": {Default: full, Rules: []Rule{{Name: "a", Quota: Quota{Weight: math.Inf(1), Limit: 1}}}},
		"tenants[0].limit":  {Default: full, Rules: []Rule{{Name: "a", Quota: Quota{Weight: 1, Limit: math.NaN()}}}},
		"tenants[0].name":   {Default: full, Rules: []Rule{{Name: strings.Repeat("a", 64), Quota: full}}},
		"tenants":           {Default: full, Rules: many},
	} {
		if err := table.Check(); err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%v; want an error about %s", err, want)
		}
	}
	good := Table{Default: full, Rules: []Rule{{Name: "team-a/b_c@d.1", Quota: half}, {Name: strings.Repeat("a", 63), Quota: half}}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}
