package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// A term needs only its row, and no code in this package.
func TestTermIsAKey(t *testing.T) { // not parallel: the table is everybody's
	before := quota.Terms
	defer func() { quota.Terms = before }()
	quota.Terms = slices.Concat(before, []*quota.Term{{
		Key: "patience", At: func(q *quota.Quota) quota.Value { return &q.LaunchWait },
		Check: func(q quota.Quota) string {
			if q.LaunchWait > quota.Wait(time.Minute) {
				return "nobody has more than a minute"
			}
			return ""
		},
		Says: "patience of",
	}})
	tenant := func(terms string) string {
		return fixture.Config(t, "enforcer:\n  tenants:\n    - name: a\n      guarantee: 10 %\n      "+terms+"\n")
	}
	for terms, want := range map[string]string{
		"patience: 90s":  ":5: enforcer.tenants[0].patience: nobody has more than a minute",
		"patience: long": `:5: enforcer.tenants[0].patience: "long" is not a duration such as 10s or 1m`,
		"patience: [1s]": ":5: enforcer.tenants[0].patience: want a duration such as 10s or 1m, not a list",
		"gpus: [{gpu: ['0'], patience: 90s}]": ":5: enforcer.tenants[0].gpus[0].patience: " +
			"nobody has more than a minute",
		"impatience: 1s": `:5: unknown key "impatience"; known here: name, select, binding, ` +
			"priority, guarantee,",
		"gpus: [{gpu: ['0'], impatience: 1s}]": "bandwidth, patience",
		"limit: 90 %\n      limit: 80 %":       `:6: enforcer.tenants[0].limit: mapping key "limit" already defined`,
	} {
		fixture.Contains(t, problems(tenant(terms)), want, "%s", terms)
	}
	c := fixture.Value(Load(tenant("patience: 7s\n      launch_wait:\n      gpus: [{gpu: ['0'], patience: 9s}]")))(t)
	p := policy.New(c.Enforcer.Table(nil), policy.HostView{}, nil)
	for gpu, want := range map[string]time.Duration{"": 7 * time.Second, "0": 9 * time.Second} {
		if q := p.Quota("a", gpu); q.LaunchWait != quota.Wait(want) {
			t.Errorf("on GPU %q: %v, want %v", gpu, q.LaunchWait, want)
		}
	}
	c.Enforcer.Tenants[0].Select = []Selector{{Users: []string{"4000000000"}}}
	var text strings.Builder
	policy.New(c.Enforcer.Table(nil), policy.HostView{}, nil).
		Explain(&text, broker.Facts{PID: 1, UID: 4000000000}, &host.Workload{})
	if !strings.Contains(text.String(), "patience of 7s") || !strings.Contains(text.String(), "patience of 9s") {
		t.Errorf("it is not explained:\n%s", &text)
	}
}

func TestEveryTermIsDocumented(t *testing.T) {
	t.Parallel()
	for path, form := range map[string]string{reference: `(?m)^  #   (\w+, )*%s(, \w+)*: `,
		"../../docs/enforcement.md": "(?m)^\\| `%s` \\| "} {
		text := fixture.Value(os.ReadFile(path))(t)
		for _, key := range quota.Keys() {
			if !regexp.MustCompile(strings.Replace(form, "%s", key, 1)).Match(text) {
				t.Errorf("%s does not explain the term %s", path, key)
			}
		}
	}
}
