//go:build timed || gpu

package enforcer_test

import "time"

// within returns the limit: these tests run alone, and some of their deadlines are guaranteed.
func within(limit time.Duration) time.Duration { return limit }
