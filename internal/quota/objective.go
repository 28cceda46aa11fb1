package quota

// An Objective is a promise of a quota. QoS counts the windows in which the
// tenant wanted what it was promised, and those in which it did not get it.
type Objective int

// The objectives.
const (
	Compute    Objective = iota // the guarantee
	Memory                      // the memory that is kept for the tenant
	LaunchWait                  // the wait for a turn
	Objectives
)

// String returns the objective's name in metrics.
func (o Objective) String() string {
	return [Objectives]string{"compute", "memory", "launch_wait"}[o]
}

// Promises reports whether q has the objective.
func (q *Quota) Promises(o Objective) bool {
	return [Objectives]bool{q.Guarantee > 0, q.Reserved > 0, q.LaunchWait > 0}[o]
}
