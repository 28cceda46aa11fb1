package health

import (
	"gpusteward/health/incident"
	"maps"
	"slices"
)

// An Inhibition silences what follows from a fault while that is told, so
// that one fault is told once. What is worse than its cause is told all the
// same. Alertmanager has the same in deploy/alertmanager.yml.
type Inhibition struct {
	Cause   string   // a check
	Effects []string // checks of the same GPU; nil: all of it
}

// Inhibitions are all, of checks of a GPU.
var Inhibitions = []Inhibition{
	{"gpu_lost", nil},
	{missingCheck, nil},
	{"remap_failed", []string{"xid_fatal", incident.RecoveryCheck, "ecc_uncorrectable", "remap_pending", "remap_spare"}},
	{"sram_threshold", []string{"xid_fatal", incident.RecoveryCheck, "ecc_uncorrectable", "sram_unique_unc"}},
	{incident.RecoveryCheck, []string{"xid_fatal", "ecc_uncorrectable"}}, // the driver's verdict on the XID
	{"xid_fatal", []string{"ecc_uncorrectable", "driver_hang"}},
	{"driver_hang", []string{"stale", "sensor_lost"}},
	{"fan_stopped", []string{"thermal_margin", "thermal_throttle_ratio", "temp_rise", "temp_outlier"}},
	{"thermal_margin", []string{"thermal_throttle_ratio", "temp_rise", "temp_outlier"}},
	{"temp_rise", []string{"temp_outlier"}},
	{"power_brake", slow},
	{"thermal_throttle_ratio", slow},
	{"clock_stuck", slow},
}

// slow are the checks by which a GPU is slow, whatever for.
var slow = []string{"clock_outlier", "memory_clock", "slow_gpu", "work_outlier"}

// silences reports whether a check is silenced while the cause is told.
func (i Inhibition) silences(check string) bool {
	return slices.Contains(i.Effects, check) || i.Effects == nil && !slices.Contains(gone, check)
}

// gone are the checks by which a GPU is gone: neither silences the other.
var gone = []string{"gpu_lost", missingCheck}

// silences reports whether an alert silences another that would begin now.
func (a Alert) silences(b Alert) bool {
	worse := severityOf(a) - severityOf(b)
	if a.Labels["check"] == b.Labels["check"] {
		return worse > 0 && maps.Equal(unlike(a.Labels), unlike(b.Labels))
	}
	if worse < 0 || a.Labels["uuid"] == "" || a.Labels["uuid"] != b.Labels["uuid"] {
		return false
	}
	return slices.ContainsFunc(Inhibitions, func(i Inhibition) bool {
		return i.Cause == a.Labels["check"] && i.silences(b.Labels["check"])
	})
}

// unlike returns an alert's labels but for its severity.
func unlike(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, "severity")
	return labels
}

// severityOf returns what an alert's label says.
func severityOf(a Alert) (s incident.Severity) {
	_ = s.UnmarshalText([]byte(a.Labels["severity"])) // every alert has one
	return s
}

// unsilenced returns those of the alerts that fire which are to be told: not
// what another silences, unless it was told before.
func unsilenced(all []Alert, told func(Alert) bool) []Alert {
	return slices.DeleteFunc(slices.Clone(all), func(b Alert) bool {
		return !told(b) && slices.ContainsFunc(all, func(a Alert) bool { return a.silences(b) })
	})
}
