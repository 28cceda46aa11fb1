package escalation

import (
	"testing"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
)

// TestEvidenceOfLittleKnown holds that a violation counts where more than that
// is not known of a subject: who uses too much of a GPU's time is not known to
// be clean until the next window, and is found in each.
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
