// Package dashboards writes Grafana's dashboards from rows: what a panel shows,
// from which metrics, and why one would look at it. Its golden test writes them
// under -update (make generate); nothing imports it.
package dashboards

// A dashboard is a page of Grafana's.
type dashboard struct {
	name        string // of its file and its uid
	title       string
	description string
	variables   []variable // beside data source, cluster and job
	xids        bool       // whether XIDs are marked in time
	rows        []row
}

// A row is a titled part of a dashboard.
type row struct {
	title  string
	folded bool // closed until somebody opens it
	panels []panel
}

// A kind is how a panel shows its values.
type kind string

// The kinds, by Grafana's names for them.
const (
	stat   kind = "stat"           // the newest value, large
	lines  kind = "timeseries"     // values over time
	areas  kind = "areas"          // the same, piled on one another
	states kind = "state-timeline" // states over time
	table  kind = "table"          // a row for each entity
)

// A panel is one picture: its text, its unit and its queries.
type panel struct {
	kind        kind
	title       string
	description string
	unit        string // Grafana's id of it
	queries     []query
	width       uint32 // of 24 columns; 0 is what is usual for the kind
	height      uint32 // 0 is what is usual for the kind
	least, most *float64
	steps       []step           // colours by value, from the lowest on
	values      map[string]value // what values are called
	none        string           // said where there is no value
	link        *link

	keys    []key    // a table's labels
	columns []column // a table's values, instead of queries
	sort    string   // the column that a table is sorted by, the highest first
}

// A query is an expression and what its series are called.
type query struct{ expr, legend string }

// A step is a colour for values from its start on.
type step struct {
	from  float64 // the first step's is not looked at
	color string
}

// A value is what a number is called, and its colour.
type value struct{ text, color string }

// A key is a label that tells a table's rows apart.
type key struct {
	label, title string
	link         *link
}

// A column is a value of a table's rows: its expression keeps the keys' labels.
type column struct {
	title, expr, unit string
	steps             []step
	values            map[string]value
	gauge             bool // a bar from 0 to 1
}

// A link goes to another dashboard, with labels of what it starts from.
type link struct {
	title, to string
	labels    []string
}

// Colours, by Grafana's names: of what is well, what is not, and what is only a
// value.
const (
	green, yellow, orange, red, purple = "green", "yellow", "orange", "red", "purple"
	blue, gray                         = "blue", "text"
)

// Steps that several panels have.
var (
	plain    = []step{{0, blue}}
	anyIsBad = []step{{0, green}, {1, red}}
	anyWarns = []step{{0, green}, {1, orange}}
	upIsGood = []step{{0, red}, {1, green}}
)

// What 0 and 1, and the states of health, are called.
var (
	yesNo   = map[string]value{"0": {"no", green}, "1": {"yes", red}}
	upDown  = map[string]value{"0": {"down", red}, "1": {"up", green}}
	healths = map[string]value{"0": {"well", green}, "1": {"degraded", orange}, "2": {"failed", red}}
)

// at is a bound of a panel's axis.
func at(v float64) *float64 { return &v }

// Links to what a label names.
var (
	toHost     = &link{"Open the host", "host", []string{"job", "instance"}}
	toGPU      = &link{"Open the GPU", "gpu", []string{"job", "instance", "gpu"}}
	toHealth   = &link{"Open the health of the GPU", "health", []string{"job", "instance", "gpu"}}
	toWorkload = &link{"Open the workload", "workloads", []string{"job", "instance", "workload"}}
	toTenant   = &link{"Open the tenant", "quotas", []string{"job", "instance", "tenant"}}
)

// Keys of tables.
var (
	hostKey     = key{"instance", "Host", toHost}
	gpuKey      = key{"gpu", "GPU", toGPU}
	workloadKey = key{"workload", "Workload", toWorkload}
	tenantKey   = key{"tenant", "Tenant", toTenant}
)

// all returns the dashboards, in the order in which one looks at them.
func all() []dashboard {
	return []dashboard{fleet, host, gpu, workloads, quotas, events, agent}
}
