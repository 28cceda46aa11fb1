// Package health judges the collectors' readings: checks over metrics and incidents, one state
// for each check and entity, and alerts. It never calls the driver.
//
//	driver's events, kernel's log -> observations -> incident.Correlator -> incidents \
//	samples of the host -> Snapshot -> derived.Metrics -> signals -> checks ------------> states
//	states -> findings (status, gpusteward check), alerts (notifier), events (journal), metrics
//
// A Check is a row (checks_*.go): signals, thresholds that set and clear it, K of N samples,
// and the action to take. A Signal can read a snapshot, can be written as PromQL, and knows
// series that make a given value. The judgement here, the rules in package alerts, their tests
// and the runbook therefore come from one declaration. Incidents are counted into a gauge,
// nvgpu_recent_incidents, which survives a restart and has no first increment to miss.
//
// The Engine is pure: Eval(snapshot, incidents, now). K of N samples enter a state. N clear
// samples leave it after the hold-down, which is 5 min, doubles with each flap, and is an hour
// at most. A latched fault ends with a reset, a reload of the driver, another boot, or an
// acknowledgement. The signs of a reset are an energy counter that began again, and a driver
// that no longer asks for a reset, by its reading or by XID 154. An incident that only a reset
// ends counts until then, whatever the window of its check.
//
// The Monitor feeds the Engine every second, and within 20 ms of an event, and passes the
// results on. Checks in shadow mode have metrics and findings, and alert only if
// health.enable_alerts names them.
//
// Invariants:
//
//   - Unknown is not healthy: three intervals without data make a check unknown.
//   - Counters are judged by their increase. A counter that fell is a new baseline. A counter
//     that the board keeps includes the time in which the agent was down.
//   - Intervals are counted on the monotonic clock: setting the clock does no harm.
//   - A fault that a tenant causes never condemns a GPU, and a fault of the hardware excuses
//     the workloads on it (hardware.go).
//
// Alarms must be true. make truth simulates a thousand days of healthy hosts, whose author had
// not seen the checks (world_*_test.go). detect_test.go has a scenario for each check, which
// must find it and nothing else. testdata/causes.yml pairs faults with healthy causes that look
// like them.
//
// Begin with Check in check.go, a row of checks_thermal.go, and Eval in engine.go.
package health
