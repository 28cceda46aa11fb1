//go:build !timed && !gpu

package enforcer_test

import "time"

// within returns how long a test waits for what takes at most the limit on an idle machine.
func within(limit time.Duration) time.Duration { return max(limit, 2*time.Minute) }
