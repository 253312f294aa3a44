//! Which wires an endpoint uses, read from UCX's own print-out.
//!
//! The call that answers in a struct exists only from UCX 1.14 on; the print-out has had lines like
//! `lane[0]:  2:tcp/lo.0 md[1] -> …` in all releases since long before.

use std::ffi::c_char;

use ucx_sys::{ucp_ep_h, Ucx};

/// Wires as `kind/device`, each once, in UCX's order; empty if the print-out has none.
pub(super) fn wires(ucx: &Ucx, endpoint: ucp_ep_h) -> String {
    from_report(&report(ucx, endpoint))
}

fn report(ucx: &Ucx, endpoint: ucp_ep_h) -> String {
    let mut text: *mut c_char = std::ptr::null_mut();
    let mut len = 0usize;
    // SAFETY: two outputs that live until the stream is closed.
    let stream = unsafe { libc::open_memstream(&mut text, &mut len) };
    if stream.is_null() {
        return String::new();
    }
    // SAFETY: a live endpoint and an open stream.
    unsafe { ucx.ucp_ep_print_info(endpoint, stream) };
    // SAFETY: open, closed once; this fills in the outputs.
    let closed = unsafe { libc::fclose(stream) };
    if text.is_null() {
        return String::new();
    }
    let copy = if closed == 0 {
        // SAFETY: a closed memory stream has `len` bytes at `text`.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
        String::from_utf8_lossy(bytes).into_owned()
    } else {
        String::new()
    };
    // SAFETY: the stream's memory is the caller's to free.
    unsafe { libc::free(text.cast()) };
    copy
}

fn from_report(report: &str) -> String {
    let mut wires: Vec<&str> = Vec::new();
    for line in report.lines() {
        let Some((_, lane)) = line.split_once("lane[") else { continue };
        let Some((_, lane)) = lane.split_once("]:") else { continue };
        // "2:tcp/lo.0": number, wire, and which of several interfaces.
        let Some((_, wire)) = lane.trim_start().split_once(':') else { continue };
        let wire = wire.split_whitespace().next().unwrap_or("");
        let wire = match wire.rsplit_once('.') {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => wire,
        };
        if !wire.is_empty() && !wires.contains(&wire) {
            wires.push(wire);
        }
    }
    wires.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_are_read_from_the_report() {
        let report = "#\n# UCP endpoint 0x7f\n#               peer: <no debug data>\n\
            #                 lane[0]:  2:tcp/lo.0 md[1]      -> md[1]/tcp/sysdev[255] am am_bw#0\n\
            #                 lane[1]:  5:posix/memory md[3]  -> md[3]/posix/sysdev[255] rma_bw#1\n\
            #                 lane[2]:  2:tcp/lo.1 md[1]      -> md[1]/tcp/sysdev[255]\n#\n";
        assert_eq!(from_report(report), "tcp/lo, posix/memory");
        assert_eq!(from_report("nothing of the kind"), "");
    }
}
