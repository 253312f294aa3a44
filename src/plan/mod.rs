//! snapshot + profile + table -> Plan.
