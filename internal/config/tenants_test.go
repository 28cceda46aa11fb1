package config

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// The example of a tenant in the reference is valid once it is uncommented.
func TestReferenceConfigHasAGoodExample(t *testing.T) {
	t.Parallel()
	source := fixture.Value(os.ReadFile(reference))(t)
	_, example, found := strings.Cut(string(source), "  #   - name: serving\n")
	example, _, _ = strings.Cut(example, "  # Unit: ")
	fixture.Need(t, found, true, "there is no example")
	c, err := Load(fixture.Config(t, "enforcer:\n  tenants:\n    - name: serving\n"+strings.ReplaceAll("\n"+example,
		"\n  # ", "\n  ")[1:]))
	fixture.Must(t, err)
	rules := c.Enforcer.Table(nil).Rules
	var there quota.Written
	fixture.Must(t, errors.Join(there.Set("guarantee", "0 %"), there.Set("memory", "10 GiB")))
	steps := TenantEscalation{}.steps(Defaults().Enforcer.Escalation)
	steps.Mode, steps.Shadow = policy.Throttle, false
	want := policy.Rule{
		Name: "serving", Select: []policy.Selector{{Units: []string{"triton*.service"}},
			{Pods: []string{"inference/*"}}},
		Terms: policy.Terms{Priority: policy.PriorityHigh, Quota: policy.Quota{Guarantee: .5, Limit: .8,
			Memory: 40 << 30, Reserved: 20 << 30,
			LaunchWait: quota.Wait(20 * time.Millisecond), Bandwidth: .6}},
		Steps: steps,
		GPUs:  []policy.Override{{GPUs: []string{"0", "3"}, Written: there}},
	}
	if len(rules) != 3 || !reflect.DeepEqual(rules[0], want) || rules[2].Priority != policy.PriorityIdle ||
		rules[1].Priority != policy.PriorityNormal || rules[1].Steps.Confirm != 3 {
		t.Errorf("the tenants are\n%+v\nwant first\n%+v", rules, want)
	}
}
