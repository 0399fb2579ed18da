// The sources have no public address yet: .invalid is reserved for names that lead nowhere, so require it with a
// replacement, as README.md shows.
module buckram.invalid/buckram

go 1.23
