package config

import (
	"cmp"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/input"
)

// Enforcer says whether the broker shares out the GPUs, and how much each
// tenant gets.
type Enforcer struct {
	Enabled     bool          `yaml:"enabled"`
	Socket      string        `yaml:"socket"`
	Turn        time.Duration `yaml:"turn"`
	InFlight    time.Duration `yaml:"in_flight"`
	Fail        string        `yaml:"fail"`
	TimeSlices  string        `yaml:"time_slices"`
	Sharing     string        `yaml:"sharing"`
	MPS         *bool         `yaml:"mps,omitempty"` // of older files: true is sharing: concurrent
	NCCL        string        `yaml:"nccl_ras"`
	Trusted     []string      `yaml:"nccl_ras_versions"` // of NCCL; they are asked although a question can crash them
	KernelTimes bool          `yaml:"kernel_times"`
	Default     Default       `yaml:"default"`
	Overcommit  Overcommit    `yaml:"overcommit"`
	Escalation  Escalation    `yaml:"ladder"`
	Tenants     []Tenant      `yaml:"tenants"`
	TenantsDirs []string      `yaml:"tenants_dirs"` // directories with more tenants: see TenantFiles
	Gemini      []Gemini      `yaml:"gemini"`
}

func defaultEnforcer(on func(path string) string) Enforcer {
	return Enforcer{Turn: 10 * time.Millisecond, InFlight: 750 * time.Microsecond, Fail: "open", TimeSlices: "auto",
		Sharing: "turns", NCCL: "localhost:28028",
		Default: Default{Priority: priority(policy.PriorityNormal), Limit: 1}, Overcommit: Overcommit{Turn: 30 * time.Second},
		Escalation: Escalation{Mode: level(policy.Warn), Shadow: true, Confirm: 3, Of: 5, Hold: time.Minute, Throttle: 0.5,
			Pause: []string{"broker", "freezer", "signal"}, Grace: 30 * time.Second, Actions: 10},
		TenantsDirs: []string{on("/etc/gpusteward/tenants.d"), on("/run/gpusteward/tenants.d")},
	}
}

// releases is a release of NCCL, or its first two numbers.
var releases = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)

// Concurrent reports whether programs run at once, as clients of CUDA MPS.
func (c Enforcer) Concurrent() bool { return c.Sharing == "concurrent" || c.MPS != nil && *c.MPS }

func (c Enforcer) validate() error {
	var wrong input.Errors
	wrong.If(c.Socket != "" && !filepath.IsAbs(c.Socket), "enforcer.socket: %q is not an absolute path; \"\" means "+
		"broker/broker.sock in --runtime.dir", c.Socket)
	wrong.If(len(c.Socket) > maxSocket, "enforcer.socket: the path of a socket has at most %d bytes, and this one has %d",
		maxSocket, len(c.Socket))
	wrong.If(c.Turn < 2*time.Millisecond || c.Turn > 100*time.Millisecond,
		"enforcer.turn: %v is not between 2ms and 100ms", c.Turn)
	wrong.If(c.InFlight < 100*time.Microsecond || c.InFlight > c.Turn,
		"enforcer.in_flight: %v is not between 100us and the turn (%v)", c.InFlight, c.Turn)
	wrong.If(c.Fail != "open" && c.Fail != "closed", "enforcer.fail: %q is neither open nor closed", c.Fail)
	wrong.If(c.TimeSlices != "auto" && c.TimeSlices != "off", "enforcer.time_slices: %q is neither auto nor off",
		c.TimeSlices)
	wrong.If(c.Sharing != "turns" && c.Sharing != "concurrent", "enforcer.sharing: %q is neither turns nor concurrent",
		c.Sharing)
	host, port, err := net.SplitHostPort(c.NCCL)
	wrong.If(c.NCCL != "" && (err != nil || host == "" || port == ""),
		"enforcer.nccl_ras: %q is no address like localhost:28028; \"\" asks no job", c.NCCL)
	for i, v := range c.Trusted {
		wrong.If(!releases.MatchString(v), "enforcer.nccl_ras_versions[%d]: %q is neither a release of NCCL like 2.30.7, "+
			"nor all of them like 2.30", i, v)
	}
	for i, dir := range c.TenantsDirs {
		wrong.If(!filepath.IsAbs(dir), "enforcer.tenants_dirs[%d]: %q is not an absolute path", i, dir)
		wrong.If(slices.Contains(c.TenantsDirs[:i], dir), "enforcer.tenants_dirs[%d]: %q is listed twice", i, dir)
	}
	wrong.Below("", c.checkWith())
	wrong.Below("", checkGemini(c.Gemini))
	return wrong.Err()
}

// maxSocket is the longest path of a Unix socket, in bytes.
const maxSocket = 107

// BrokerSocket returns the path of the broker's socket. Its directory holds
// nothing else: containers get that directory, without the control socket and
// the enforcer's lock.
func (c Enforcer) BrokerSocket(runtimeDir string) string {
	return cmp.Or(c.Socket, filepath.Join(runtimeDir, "broker", "broker.sock"))
}
