package health

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"gpusteward/health/incident"
)

// The facts about boards, work, hosts and the kernel's lines are in tables.
//
//go:embed testdata/world
var worldFiles embed.FS

// A worldRow is a row of one of these tables, by column.
type worldRow map[string]string

// worldTable returns a table of testdata/world, whose first column is a name.
var worldTable = func() func(name string) []worldRow {
	var mu sync.Mutex
	read := map[string][]worldRow{}
	return func(name string) []worldRow {
		mu.Lock()
		defer mu.Unlock()
		if read[name] == nil {
			read[name] = readWorldTable(name)
		}
		return read[name]
	}
}()

func readWorldTable(name string) (all []worldRow) {
	incident.ReadTable(worldFiles, "testdata/world/"+name+".tsv", func(row map[string]string) error {
		all = append(all, row)
		return nil
	})
	return all
}

// worldRowOf returns a table's row with a value in a column.
func worldRowOf(table, column, value string) worldRow {
	for _, row := range worldTable(table) {
		if row[column] == value {
			return row
		}
	}
	panic(fmt.Sprintf("health: %s.tsv has no %s %q", table, column, value))
}

// number returns a column as a number.
func (r worldRow) number(column string) float64 {
	v, err := strconv.ParseFloat(r[column], 64)
	if err != nil {
		panic(fmt.Sprintf("health: column %s: %v", column, err))
	}
	return v
}

// has reports whether the column has contains a word.
func (r worldRow) has(word string) bool { return strings.Contains(" "+r["has"]+" ", " "+word+" ") }
