package escalation

import (
	"testing"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
)

// TestEvidenceOfLittleKnown holds that a violation counts even if nothing else
// is known of a subject. A subject with too much GPU time is not known to be
// clean before the next window, and is found in each.
func TestEvidenceOfLittleKnown(t *testing.T) {
	c := newClimber()
	for range c.steps.Confirm {
		f := c.audit('x', someone)
		f.Seen = map[audit.Subject]Status{someone: {GPUs: []string{"GPU-good"}}}
		c.judge(f)
	}
	if level, _ := c.Level(someone); level != policy.Warn {
		t.Errorf("after %d audits that found a violation it is at %v, want %v", c.steps.Confirm, level, policy.Warn)
	}
}
