package dashboards

// A dashboard is a Grafana dashboard.
type dashboard struct {
	name        string // part of the file name and the uid
	title       string
	description string
	variables   []variable // without data source, cluster and job
	xids        bool       // whether XIDs are annotations
	rows        []row
}

// A row is a titled part of a dashboard.
type row struct {
	title  string
	folded bool // collapsed at first
	panels []panel
}

// A kind is the visualization of a panel.
type kind string

// The kinds, with Grafana's names.
const (
	stat   kind = "stat"           // the last value
	lines  kind = "timeseries"     // values over time
	areas  kind = "areas"          // values over time, stacked
	states kind = "state-timeline" // states over time
	table  kind = "table"          // a row for each entity
)

// A panel is a panel of a dashboard.
type panel struct {
	kind        kind
	title       string
	description string
	unit        string // Grafana's id
	queries     []query
	width       uint32 // of 24 columns; 0 is the default of the kind
	height      uint32 // 0 is the default of the kind
	least, most *float64
	steps       []step           // colours by value, lowest first
	values      map[string]value // texts of values
	none        string           // text for no value
	link        *link

	keys    []key    // labels of a table
	columns []column // values of a table, instead of queries
	sort    string   // the column that sorts a table, highest first
}

// A query is an expression and the legend of its series.
type query struct{ expr, legend string }

// A step is the colour of values from a threshold up.
type step struct {
	from  float64 // ignored in the first step
	color string
}

// A value is the text and the colour of a number.
type value struct{ text, color string }

// A key is a label that identifies the rows of a table.
type key struct {
	label, title string
	link         *link
}

// A column is a value in the rows of a table. Its expression keeps the labels of the keys.
type column struct {
	title, expr, unit string
	steps             []step
	values            map[string]value
	gauge             bool // shown as a bar from 0 to 1
}

// A link leads to another dashboard and passes labels to its variables.
type link struct {
	title, to string
	labels    []string
}

// Colors, with Grafana's names: first those of good and bad values, then the neutral
// ones.
const (
	green, yellow, orange, red, purple = "green", "yellow", "orange", "red", "purple"
	blue                               = "blue"
)

// Steps of several panels.
var (
	plain    = []step{{0, blue}}
	anyIsBad = []step{{0, green}, {1, red}}
	anyWarns = []step{{0, green}, {1, orange}}
	upIsGood = []step{{0, red}, {1, green}}
)

// Texts for 0 and 1, and for the states of health.
var (
	yesNo   = map[string]value{"0": {"no", green}, "1": {"yes", red}}
	upDown  = map[string]value{"0": {"down", red}, "1": {"up", green}}
	healths = map[string]value{"0": {"healthy", green}, "1": {"degraded", orange}, "2": {"failed", red}}
)

// at returns a bound of an axis.
func at(v float64) *float64 { return &v }

// Links to the dashboard of an entity.
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

// all returns the dashboards in reading order.
func all() []dashboard {
	return []dashboard{fleet, host, gpu, workload, traced, quotas, events, agent}
}
