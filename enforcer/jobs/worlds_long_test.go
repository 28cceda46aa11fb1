//go:build long

package jobs

import "testing"

func TestWorldHangs(t *testing.T)      { t.Parallel(); hangAll(t) }
func TestWorldEarlyHangs(t *testing.T) { t.Parallel(); hangEarly(t) }
func TestWorldIsHealthy(t *testing.T)  { t.Parallel(); stayHealthy(t) }
func TestWorldStragglers(t *testing.T) { t.Parallel(); straggleAll(t) }
func TestWorldOfCauses(t *testing.T)   { t.Parallel(); slowAll(t) }
func TestWorldIsAsUsual(t *testing.T)  { t.Parallel(); stayAsUsual(t) }
