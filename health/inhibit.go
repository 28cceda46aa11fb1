package health

import (
	"maps"
	"slices"

	"gpusteward/health/incident"
)

// An inhibition silences the effects of a fault while its alert fires, so that
// one fault raises one alert. An effect that is worse than its cause still
// alerts. deploy/alertmanager.yml has the same rules for Alertmanager.
type inhibition struct {
	Cause   string   // a check
	Effects []string // checks of the same GPU; nil: all of it
}

// inhibitions are all inhibitions among the checks of a GPU.
var inhibitions = []inhibition{
	{"gpu_lost", nil},
	{missingCheck, nil},
	{"remap_failed", []string{"xid_fatal", incident.RecoveryCheck, "ecc_uncorrectable",
		"remap_pending", "remap_spare"}},
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

// slow are the checks that find a slow GPU, for whatever reason.
var slow = []string{"clock_outlier", "memory_clock", "slow_gpu", "work_outlier"}

// silences reports whether the alert of the cause silences a check.
func (i inhibition) silences(check string) bool {
	return slices.Contains(i.Effects, check) || i.Effects == nil && !slices.Contains(gone, check)
}

// gone are the checks that find a lost GPU; neither silences the other.
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
	return slices.ContainsFunc(inhibitions, func(i inhibition) bool {
		return i.Cause == a.Labels["check"] && i.silences(b.Labels["check"])
	})
}

// unlike returns an alert's labels without its severity.
func unlike(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, "severity")
	return labels
}

// severityOf returns the severity in an alert's labels.
func severityOf(a Alert) (s incident.Severity) {
	_ = s.UnmarshalText([]byte(a.Labels["severity"])) // every alert has one
	return s
}

// unsilenced returns the firing alerts that no other silences, and those that
// were sent before.
func unsilenced(all []Alert, told func(Alert) bool) []Alert {
	return slices.DeleteFunc(slices.Clone(all), func(b Alert) bool {
		return !told(b) && slices.ContainsFunc(all, func(a Alert) bool { return a.silences(b) })
	})
}
