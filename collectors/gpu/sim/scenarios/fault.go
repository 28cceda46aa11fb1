package scenarios

// Fault is a fault at a time of the scenario. Keys that its kind does not use
// are errors.
type Fault struct {
	Kind  string   `yaml:"kind"`  // one of kinds
	At    Duration `yaml:"at"`    // since the start of the scenario
	For   Duration `yaml:"for"`   // length of the window; 0: for ever
	Every Duration `yaml:"every"` // repeats with this period, longer than the window
	GPU   int      `yaml:"gpu"`   // index of the GPU; ignored for a call on the host

	Code uint64  `yaml:"code"` // xid: the code
	GI   *uint32 `yaml:"gi"`   // xid: GPU instance
	CI   *uint32 `yaml:"ci"`   // xid: compute instance
	// ecc, row_remap: corrected or uncorrected; pcie_aer: correctable, nonfatal
	// or fatal
	Severity string `yaml:"severity"`
	Device   string `yaml:"device"`   // ib_down: the port, mlx5_0/1 by default
	Location string `yaml:"location"` // ecc: dram or sram
	// ecc, row_remap, spare_rows, nvlink_errors, pcie_aer: number, 1 by
	// default; leak, orphan_memory, ghost: MiB; job_slow: percent by which steps
	// are longer; job_straggler: percent of a step that the other ranks wait
	Count      uint64  `yaml:"count"`
	Pending    bool    `yaml:"pending"`    // row_remap: a reset is due, until the window ends
	Failure    bool    `yaml:"failure"`    // row_remap: the remapping failed, until the window ends
	Link       int     `yaml:"link"`       // nvlink_down, nvlink_errors: NVLink index
	Generation int     `yaml:"generation"` // pcie_degraded: PCIe generation
	Width      int     `yaml:"width"`      // pcie_degraded: lanes
	Celsius    float64 `yaml:"celsius"`    // thermal: target temperature
	Megahertz  float64 `yaml:"megahertz"`  // clock: maximum SM clock
	Watts      float64 `yaml:"watts"`      // power: additional draw
	Call       string  `yaml:"call"`       // wedge, error: the NVML function, such as nvmlDeviceGetFieldValues
	Return     string  `yaml:"return"`     // error: the NVML return, such as ERROR_UNKNOWN
	// recovery_action: the action; event: its type, such as ecc_sbe_storm;
	// mode: the mode; spare_rows: low or none; fabric: the fault; job_slow,
	// job_straggler: the cause; job_hang: the reason
	Value  string `yaml:"value"`
	Tenant string `yaml:"tenant"` // bypass, greedy, starved: the tenant
	// kernel_line: the line; {pci} in it is the GPU's address, such as
	// 0000:1b:00; job_slow: the evidence; job_hang: where the culprit stands
	Line string `yaml:"line"`
}
