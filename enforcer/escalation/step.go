package escalation

import (
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
)

// A Step is one level up or down.
type Step struct {
	audit.Subject
	Time     time.Time
	From, To policy.Level
	Evidence []audit.Violation // of the last audit; none on the way down
	Why      string            // a sentence for people: "3 of 5 audits found ..."
	Result   string            // done, shadow, braked, missed, failed, refused; empty until it was done
	Detail   string            // the action and its targets, or why there was none
}
