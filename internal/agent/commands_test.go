package agent

import (
	"bytes"
	"strings"
	"testing"
)

// TestUsageErrorsNameTheFlag: an error about a value names its flag or argument.
func TestUsageErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"status --format=yaml":      "--format: enum value must be one of text,json, got 'yaml'",
		"--log.level=loud":          "--log.level: enum value must be one of debug,info,warn,error",
		"--demo --demo.hosts=many":  `--demo.hosts: "many" is not a number that fits`,
		"check --timeout=5":         "--timeout: time: missing unit in duration",
		"check --timeout=1s":        "gpusteward: --timeout=1s is too short",
		"stack python3":             `PID: "python3" is not a number that fits`,
		"stack":                     "required argument 'PID' not provided",
		"--demos":                   "unknown long flag '--demos'",
		"diag --level=9 --gpus=0,1": "--level: enum value must be one of 1,2,3",
	} {
		var out, said bytes.Buffer
		if status := Run(t.Context(), strings.Fields(line), &out, &said); status != exitUsage && status != checkMistaken {
			t.Errorf("%s: exit status %d", line, status)
		}
		if !strings.Contains(said.String(), want) || !strings.HasSuffix(said.String(), "; see gpusteward --help\n") {
			t.Errorf("%s: %q, want %q", line, said.String(), want)
		}
	}
}
